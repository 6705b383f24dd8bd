"""What is wrong with a cluster: its GPUs, what is slower than the rest, and what is slower than its settings allow."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.settings.quantities import memory
from trainyard.settings.steps.measurements import CheckCluster
from trainyard.steps.cluster.figures import GB, ClusterFigures, rate_text, rates_of_units, slowest_collectives
from trainyard.steps.cluster.node import Gpu

_COMPARED = (("driver", "drivers"), ("highest_clock_mhz", "highest clocks"), ("ecc", "ECC modes"))


def problems_of(settings: CheckCluster, found: ClusterFigures) -> Iterator[str]:
    """Yield what is wrong, one sentence each."""
    gpus: list[Any] = [node["gpus"] for node in found.nodes]
    for number, of_node in enumerate(gpus):
        yield from (f"{found.name('node', number)}: {problem}" for problem in gpu_problems(of_node))
    for number, difference in differences_between_nodes(gpus):
        yield f"{found.name('node', number)}: {difference}"
    # NCCL would prefer any other network.
    if found.has_several_nodes and (found.network or "").lower() == "socket":
        yield (
            "NCCL sends what goes between nodes over TCP sockets, not InfiniBand; take a VM size with RDMA, an image "
            "with libibverbs, and unset NCCL_IB_DISABLE"
        )
    yield from slow_units(settings, found)
    yield from map(str, missed_floors(settings, found))


def slow_units(settings: CheckCluster, found: ClusterFigures) -> Iterator[str]:
    """Yield a sentence for each slow node or rank."""
    share = settings.slow_percent / 100
    for what, unit, rates, shown in (
        ("matrix products", "rank", found.arithmetic, lambda rate: f"{rate / 1e12:.3g} TFLOP/s"),
        ("all-reduce within the node", "node", found.node_bus, rate_text),
        ("pairs with others on the node", "rank", rates_of_units(slowest_collectives(found.rank_pairs)), rate_text),
        ("pairs with other nodes", "node", rates_of_units(slowest_collectives(found.node_pairs)), rate_text),
    ):
        for slow in slow_ones(rates, share):
            name = found.name(unit, slow.number)
            yield f"{name} is slow: {what} at {shown(slow.rate)}, {slow.below_median:.0%} below the median"


@dataclass(frozen=True)
class Slow:
    """A node or rank by its number, and how far its rate is below the median of all, as a share of it."""

    number: int
    rate: float
    below_median: float


def slow_ones(rates: Mapping[int, float], least_share: float) -> list[Slow]:
    """Return those whose rate is at least `least_share` below the median of all, the slowest first."""
    if len(rates) < 2:
        return []
    median = statistics.median(rates.values())
    below = [Slow(number, rate, 1 - rate / median) for number, rate in rates.items()]
    return sorted((slow for slow in below if slow.below_median >= least_share), key=lambda slow: slow.rate)


@dataclass(frozen=True)
class Miss:
    """One rate below its floor, in bytes and GB per second, and the flag that sets the floor."""

    what: str
    rate: float
    floor_gb: float
    flag: str

    def __str__(self) -> str:
        return f"{self.what} at {rate_text(self.rate)}, below {self.floor_gb:g} GB/s"


def world_floor_gb(settings: CheckCluster, found: ClusterFigures) -> float:
    """Return the floor for collectives of the whole world in GB/s, 0 for none: the slowest link sets their rate."""
    within, between = settings.minimum_node_bus_gb_per_second, settings.minimum_network_gb_per_second
    if not found.has_several_nodes:
        return within
    return min(between, within) if within else between


def missed_floors(settings: CheckCluster, found: ClusterFigures) -> Iterator[Miss]:
    """Yield what is below its floor: within each node, then between nodes, then over the whole world."""
    floor = settings.minimum_node_bus_gb_per_second
    for number, rate in found.node_bus.items():
        if rate < floor * GB:
            what = f"{found.name('node', number)}: all-reduce within the node"
            yield Miss(what, rate, floor, "--minimum-node-bus-gb-per-second")
    if found.has_several_nodes:
        yield from _missed_between_nodes(settings, found)


def _missed_between_nodes(settings: CheckCluster, found: ClusterFigures) -> Iterator[Miss]:
    flag, floor = "--minimum-network-gb-per-second", settings.minimum_network_gb_per_second
    pairs = slowest_collectives(found.node_pairs)
    of_node = rates_of_units(pairs)
    # Two nodes have one pair: it does not tell which of them is slow.
    slow = {node: rate for node, rate in of_node.items() if rate < floor * GB} if len(of_node) > 2 else {}
    for node, rate in slow.items():
        yield Miss(f"{found.name('node', node)}: pairs with other nodes", rate, floor, flag)
    for (one, other), rate in pairs.items():
        if rate < floor * GB and one not in slow and other not in slow:
            yield Miss(f"{found.name('node', one)} and {found.name('node', other)}: the pair", rate, floor, flag)
    floor = world_floor_gb(settings, found) if floor else 0.0
    for measured in found.of_largest_message():
        if measured.bus_bytes_per_second < floor * GB:
            what = f"{measured.operation.replace('_', '-')} of {memory(measured.bytes)} over all nodes"
            yield Miss(what, measured.bus_bytes_per_second, floor, flag)


def gpu_problems(gpus: Sequence[Gpu]) -> Iterator[str]:
    """Yield what is wrong with a node's GPUs, as phrases: memory errors, a low clock limit compared with the others."""
    for gpu in gpus:
        errors = gpu.get("uncorrected_ecc_errors", "0")
        if errors.isdigit() and int(errors) > 0:
            yield f"GPU {gpu['index']} has counted {errors} uncorrected memory errors (ECC); have the node replaced"
    for fact, phrase in _COMPARED:
        values = sorted({gpu[fact] for gpu in gpus if fact in gpu})
        if len(values) > 1:
            yield f"its GPUs have different {phrase}: {', '.join(values)}"


def differences_between_nodes(nodes: Sequence[Sequence[Gpu]]) -> Iterator[tuple[int, str]]:
    """Yield the nodes whose GPUs differ from most nodes' in driver, highest clock or ECC: the number, and a phrase."""
    for fact, phrase in _COMPARED:
        values = [tuple(sorted({gpu[fact] for gpu in gpus if fact in gpu})) for gpus in nodes]
        if not values:
            continue
        usual = Counter(values).most_common(1)[0][0]
        for number, value in enumerate(values):
            if value != usual:
                given, others = (", ".join(facts) or "unknown" for facts in (value, usual))
                yield number, f"its GPUs' {phrase} are {given}, those of most nodes {others}"
