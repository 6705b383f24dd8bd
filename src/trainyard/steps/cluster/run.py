"""Measure every node and the bandwidth between them; write cluster.json and cluster.png; say what is wrong."""

from __future__ import annotations

import dataclasses
import os
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainyard.settings.quantities import counted, memory
from trainyard.settings.steps.measurements import CheckCluster
from trainyard.steps.cluster.bandwidth import (
    ALL_REDUCE,
    COLLECTIVES,
    PairMeasurement,
    Partners,
    measure_collective,
    measure_pairs,
    message_sizes,
    partners_between_nodes,
    partners_within_nodes,
)
from trainyard.steps.cluster.figures import GB, ClusterFigures, draw_cluster, rate_text, slowest_collectives
from trainyard.steps.cluster.node import (
    Facts,
    measure_arithmetic,
    measure_disk,
    measure_mount,
    node_facts,
)
from trainyard.steps.cluster.problems import missed_floors, problems_of, slow_units, world_floor_gb
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import write_json
from trainyard.steps.runtime.rank_variables import restored
from trainyard.steps.runtime.world import World, ranks_joined
from trainyard.steps.training.observing.mlflow_log import MlflowLog

_MIB = 2**20
_SIZE_RATIO, _SIZE_RATIO_OF_PAIRS = 4, 16
# How NCCL's log says which network it chose; it does not tell its caller.
_CHOSEN = re.compile(r"(?:Using network|Assigned NET plugin|Initialized NET plugin) (\w+)")
_IN_USE = re.compile(r"NET/(\w+) ?: Using ")


def run_check(settings: CheckCluster) -> int:
    """Measure over all ranks; rank 0 writes. Raise StepError, on every rank, if a limit is missed."""
    with nccl_log() as log, ranks_joined(settings.process_group_timeout_seconds, [settings.report]) as world:
        node_ranks = world.variables.processes_per_node
        found = _measure_nodes(settings, world, node_ranks)
        if world.size > 1:
            _measure_bandwidth(settings, world, node_ranks, found)
            found.network = world.broadcast(network_in_log(log)) if world.device.type == "cuda" else None
        problems = list(problems_of(settings, found))
        if world.is_main:
            _write(settings, world, found, problems)
        for problem in problems:
            world.log(f"warning: {problem}")
        world.log(f"report: {settings.report}")
    _check_limits(settings, found)
    return 0


def _measure_nodes(settings: CheckCluster, world: World, node_ranks: int) -> ClusterFigures:
    """Each node's facts and speeds, by its first rank; arithmetic by every rank at once, as in a training."""
    facts: Facts | None = None
    if world.rank % node_ranks == 0:
        facts = node_facts()
        facts["disk"] = measure_disk(settings.disk_mib * _MIB)
        facts["mount"] = measure_mount(settings.data, settings.disk_mib * _MIB) if settings.data else None
    world.barrier()
    rates = world.gather(measure_arithmetic(world.device, settings.repetitions))
    nodes = [node for node in world.gather(facts) if node is not None]
    for number, node in enumerate(nodes):
        world.log(f"node {number}: {_node_line(node)}")
    return ClusterFigures(nodes, dict(enumerate(rates)), network=None)


@contextmanager
def nccl_log(environment: MutableMapping[str, str] = os.environ) -> Iterator[Path]:
    """Have NCCL write what it decides into files of the folder that is yielded; the variables are restored after."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": f"{folder}/nccl.%p"}
        with restored(environment, variables):
            environment.update(variables)
            yield Path(folder)


def network_in_log(folder: Path) -> str | None:
    """Return the network between nodes by NCCL's name for it (`IB`, `Socket`, or a plugin's), None if nothing says."""
    text = "".join(file.read_text(errors="replace") for file in sorted(folder.iterdir()))
    for pattern in (_CHOSEN, _IN_USE):
        found = pattern.findall(text)
        if found:
            return str(found[-1])
    return None


def _node_line(node: Mapping[str, Any]) -> str:
    gpus = node["gpus"]
    hardware = f"{len(gpus)} x {gpus[0]['name']}, driver {gpus[0].get('driver', 'unknown')}" if gpus else "no GPU"
    disk = node["disk"]
    speeds = (
        f"disk writes {rate_text(disk['write_bytes_per_second'])}, reads {rate_text(disk['read_bytes_per_second'])}"
    )
    mount = f", mount reads {rate_text(node['mount']['read_bytes_per_second'])}" if node["mount"] else ""
    return f"{node['host']}, {node['processors']} processors, {hardware}; {speeds}{mount}"


def _measure_bandwidth(settings: CheckCluster, world: World, node_ranks: int, found: ClusterFigures) -> None:
    largest = _affordable_bytes(settings.largest_message_mib * _MIB, world, node_ranks)
    smallest = min(settings.smallest_message_kib * 1024, largest)
    for collective in COLLECTIVES:
        for size in message_sizes(smallest, largest, _SIZE_RATIO):
            measured = measure_collective(collective, world, size, settings.repetitions)
            found.collectives.append(measured)
            world.log(
                f"{measured.operation} of {memory(measured.bytes)}: {measured.seconds * 1e3:.3g} ms, "
                f"bus bandwidth {rate_text(measured.bus_bytes_per_second)}"
            )
    sizes = message_sizes(smallest, largest, _SIZE_RATIO_OF_PAIRS)

    def pairs_of(unit: str, rounds: Sequence[Partners], unit_ranks: int) -> list[PairMeasurement]:
        pairs = measure_pairs(world, rounds, unit_ranks, sizes, settings.repetitions)
        rates = slowest_collectives(pairs).values()
        if rates:
            world.log(
                f"{counted(len(rates), 'pair')} of {unit}s: bus bandwidth {rate_text(min(rates))} to "
                f"{rate_text(max(rates))}, median {rate_text(statistics.median(rates))}"
            )
        return pairs

    nodes = len(found.nodes)
    if node_ranks > 1:
        first = world.rank - world.rank % node_ranks
        group = dist.new_group(list(range(first, first + node_ranks)), use_local_synchronization=True)
        measured = measure_collective(ALL_REDUCE, world, largest, settings.repetitions, group)
        rates = world.gather(measured.bus_bytes_per_second)
        found.node_bus = {rank // node_ranks: rate for rank, rate in enumerate(rates)}
        found.rank_pairs = pairs_of("rank", partners_within_nodes(nodes, node_ranks), 1)
    if found.has_several_nodes:
        found.node_pairs = pairs_of("node", partners_between_nodes(nodes, node_ranks), node_ranks)


def _affordable_bytes(wanted: int, world: World, node_ranks: int) -> int:
    """Return the wanted size, or what a third of the free memory of each rank takes: a message and its result."""
    if world.device.type == "cuda":
        free = torch.cuda.mem_get_info(world.device)[0]
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // node_ranks
    affordable = min(world.gather(free)) // 3
    if affordable >= wanted:
        return wanted
    world.log(f"the largest message is {memory(affordable)}, since memory is short: asked for {memory(wanted)}")
    return affordable


def _write(settings: CheckCluster, world: World, found: ClusterFigures, problems: Sequence[str]) -> None:
    document = {
        "format": "trainyard.cluster/1",
        "ranks": world.size,
        "device": world.device.type,
        "network": found.network,
        "problems": list(problems),
        "nodes": found.nodes,
        "flop_per_second_of_ranks": list(found.arithmetic.values()),
        "collectives": [dataclasses.asdict(measured) for measured in found.collectives],
        "node_bus_bytes_per_second": list(found.node_bus.values()),
        "rank_pairs": [dataclasses.asdict(pair) for pair in found.rank_pairs],
        "node_pairs": [dataclasses.asdict(pair) for pair in found.node_pairs],
    }
    write_json(settings.report / "cluster.json", document)
    mlflow = MlflowLog()
    mlflow.artifact(settings.report / "cluster.json")
    if found.collectives:
        figures: dict[str, float] = {}
        for measured in found.of_largest_message():
            figures[f"{measured.operation}_bus_gb_per_second"] = measured.bus_bytes_per_second / GB
        for unit, pairs in (("rank", found.rank_pairs), ("node", found.node_pairs)):
            if pairs:
                figures[f"slowest_{unit}_pair_bus_gb_per_second"] = min(slowest_collectives(pairs).values()) / GB
        mlflow.metrics(figures, step=0)
        title = f"{counted(len(found.nodes), 'node')}, {counted(world.size, 'rank')} on {world.device.type}"
        file = settings.report / "cluster.png"
        draw_cluster(found, world_floor_gb(settings, found) * GB, title, file)
        mlflow.artifact(file)
    mlflow.close()


def _check_limits(settings: CheckCluster, found: ClusterFigures) -> None:
    miss = next(missed_floors(settings, found), None)
    if miss is not None:
        raise StepError(
            f"{miss.what} at {rate_text(miss.rate)}, below {miss.flag} {miss.floor_gb:g}; "
            f"the measurements are in {settings.report}"
        )
    slow = next(slow_units(settings, found), None)
    if settings.fail_if_slow and slow is not None:
        raise StepError(f"{slow} (--fail-if-slow, --slow-percent {settings.slow_percent:g})")
