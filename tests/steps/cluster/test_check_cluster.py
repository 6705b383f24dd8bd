"""Measuring a cluster: real ranks over gloo, and what is concluded from figures."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from forked_ranks import forked_ranks
from hypothesis import given
from hypothesis import strategies as st

from trainyard.settings.steps.measurements import CheckCluster
from trainyard.steps import check_cluster
from trainyard.steps.cluster.bandwidth import (
    Measurement,
    PairMeasurement,
    Partners,
    message_sizes,
    neighbours,
    partners_between_nodes,
    partners_within_nodes,
)
from trainyard.steps.cluster.figures import ClusterFigures, rates_of_units
from trainyard.steps.cluster.node import gpu_facts, measure_mount, read_nvidia_table
from trainyard.steps.cluster.problems import (
    differences_between_nodes,
    gpu_problems,
    missed_floors,
    problems_of,
    slow_ones,
    world_floor_gb,
)
from trainyard.steps.cluster.run import nccl_log, network_in_log
from trainyard.steps.runtime.errors import StepError

QUICK = ("--largest-message-mib", 1, "--disk-mib", 1, "--repetitions", 2)


def arguments(report: Path, *more: object) -> list[object]:
    return ["--report", report, *QUICK, *more]


def met(rounds: Sequence[Partners]) -> list[tuple[int, int]]:
    """Who meets whom over the rounds, each pair once and from both sides."""
    assert all(partners[partners[rank]] == rank != partners[rank] for partners in rounds for rank in partners)
    return sorted((rank, other) for partners in rounds for rank, other in partners.items() if rank < other)


@given(node_ranks=st.integers(1, 9), nodes=st.integers(1, 3))
def test_every_two_ranks_of_a_node_meet_once(node_ranks: int, nodes: int) -> None:
    expected = [
        (node * node_ranks + one, node * node_ranks + other)
        for node in range(nodes)
        for one, other in itertools.combinations(range(node_ranks), 2)
    ]
    assert met(partners_within_nodes(nodes, node_ranks)) == expected


@given(nodes=st.integers(2, 40), node_ranks=st.integers(1, 3))
def test_ranks_meet_those_at_their_own_place_on_both_neighbouring_nodes(nodes: int, node_ranks: int) -> None:
    rounds = partners_between_nodes(nodes, node_ranks)
    ring = {tuple(sorted((node, (node + 1) % nodes))) for node in range(nodes)}
    expected = [
        (one * node_ranks + place, other * node_ranks + place) for one, other in ring for place in range(node_ranks)
    ]
    assert met(rounds) == sorted(expected)
    assert len(rounds) <= 3


def test_message_sizes_grow_to_the_largest() -> None:
    assert message_sizes(64, 1024, 4) == [64, 256, 1024]
    assert message_sizes(64, 1000, 4) == [64, 256, 1000]
    assert message_sizes(64, 64, 4) == [64]
    assert message_sizes(64, 1024, 16) == [64, 1024]


@pytest.mark.parametrize("count", [3, 8, 64])
def test_the_slow_node_is_named_by_its_pairs(count: int) -> None:
    slow_node = count - 2
    pairs = {pair: 5e9 if slow_node in pair else 24e9 for pairs in neighbours(count) for pair in pairs}
    (found,) = slow_ones(rates_of_units(pairs), least_share=0.25)
    assert found.number == slow_node
    assert found.rate == 5e9


def test_two_nodes_cannot_tell_which_of_them_is_slow() -> None:
    assert slow_ones(rates_of_units({(0, 1): 1e9}), 0.25) == []
    assert slow_ones({0: 1e9}, 0.25) == []


def test_facts_of_gpus_are_read_and_compared() -> None:
    table = (
        "0, NVIDIA A100-SXM4-40GB, 535.183.01, 40960, 210, 1410, Enabled, 0, 31, 400.00\n"
        "1, NVIDIA A100-SXM4-40GB, 535.183.01, 40960, 210, 1095, Enabled, 3, 33, 400.00\n"
    )
    gpus = read_nvidia_table(table)
    assert gpus[1]["uncorrected_ecc_errors"] == "3"
    assert list(gpu_problems(gpus)) == [
        "GPU 1 has counted 3 uncorrected memory errors (ECC); have the node replaced",
        "its GPUs have different highest clocks: 1095, 1410",
    ]
    (t4,) = read_nvidia_table("0, Tesla T4, 535.183.01, 15360, 300, 1590, [N/A], [N/A], 40, 70.00\n")
    assert "ecc" not in t4
    assert list(gpu_problems([t4])) == []


def amd_gpu(index: int, highest_clock: int, errors: object) -> tuple[dict[str, object], dict[str, object]]:
    """What amd-smi prints of an MI300X, the facts that stay and those that change, without what is not read."""
    static = {
        "gpu": index,
        "asic": {"market_name": "AMD Instinct MI300X"},
        "vram": {"size": {"value": 196592, "unit": "MB"}},
        "limit": {"max_power": {"value": 750, "unit": "W"}},
        "driver": {"name": "amdgpu", "version": "6.14.14"},
        "ras": {"ecc_block_state": {"UMC": "ENABLED", "GFX": "ENABLED"}},
    }
    metric = {
        "gpu": index,
        "clock": {"gfx_0": {"clk": {"value": 132, "unit": "MHz"}, "max_clk": {"value": highest_clock, "unit": "MHz"}}},
        "temperature": {"edge": "N/A", "hotspot": {"value": 36, "unit": "C"}},
        "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": errors},
    }
    return static, metric


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["a list", "since ROCm 6.4"])
def test_facts_of_gpus_of_amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_wrapped: bool) -> None:
    """A program in place of amd-smi; there is no nvidia-smi on this PATH."""
    gpus = (amd_gpu(0, 2100, 0), amd_gpu(1, 1300, 2), amd_gpu(2, 2100, "N/A"))
    for name, documents in zip(("static", "metric"), zip(*gpus, strict=True), strict=True):
        whole = {"gpu_data": list(documents)} if is_wrapped else list(documents)
        (tmp_path / f"{name}.json").write_text(json.dumps(whole))
    program = tmp_path / "amd-smi"
    program.write_text(
        f'#!/bin/sh\n[ "$2" = --json ] && while read -r line; do echo "$line"; done < {tmp_path}/$1.json\n'
    )
    for name in ("static", "metric"):
        file = tmp_path / f"{name}.json"
        file.write_text(file.read_text() + "\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = gpu_facts()
    assert found[0] == {
        "index": "0", "name": "AMD Instinct MI300X", "driver": "6.14.14", "memory_mib": "196592", "clock_mhz": "132",
        "highest_clock_mhz": "2100", "ecc": "Enabled", "uncorrected_ecc_errors": "0", "temperature_celsius": "36",
        "power_limit_watts": "750",
    }  # fmt: skip
    assert "uncorrected_ecc_errors" not in found[2]
    assert list(gpu_problems(found)) == [
        "GPU 1 has counted 2 uncorrected memory errors (ECC); have the node replaced",
        "its GPUs have different highest clocks: 1300, 2100",
    ]


def test_a_program_that_answers_nonsense_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "amd-smi"
    program.write_text("#!/bin/sh\necho not JSON\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_facts() == []


def test_nodes_that_differ_from_most_are_named() -> None:
    usual = [{"driver": "535.183.01", "highest_clock_mhz": "1980", "ecc": "Enabled"}]
    unlike = [{**usual[0], "ecc": "Disabled"}]
    assert list(differences_between_nodes([usual, usual, unlike])) == [
        (2, "its GPUs' ECC modes are Disabled, those of most nodes Enabled")
    ]
    assert list(differences_between_nodes([[], []])) == []


def figures(pairs: dict[tuple[int, int], float], gather: float, node_bus: float = 470e9) -> ClusterFigures:
    """A cluster of as many nodes as the pairs name, with one GPU each."""
    count = 1 + max(other for _, other in pairs)
    return ClusterFigures(
        nodes=[{"host": f"host{number}", "gpus": []} for number in range(count)],
        arithmetic=dict.fromkeys(range(count), 6e14),
        network="IB",
        collectives=[
            Measurement("all_gather", 2**20, 1.0, 0.0, 1e9),
            Measurement("all_gather", 2**32, 1.0, 0.0, gather),
        ],
        node_bus=dict.fromkeys(range(count), node_bus),
        node_pairs=[
            PairMeasurement(pair, operation, size, 1.0, bus)
            for pair, rate in pairs.items()
            for operation, size, bus in (
                ("all_reduce", 2**20, 1e9),
                ("all_reduce", 2**32, rate * 1.1),
                ("all_gather", 2**32, rate),
            )
        ],
    )


def test_floors_between_nodes_name_the_slow_one(tmp_path: Path) -> None:
    floors = CheckCluster(report=tmp_path, minimum_node_bus_gb_per_second=460.0, minimum_network_gb_per_second=300.0)
    pairs = {pair: 100e9 if 1 in pair else 370e9 for pair in itertools.combinations(range(4), 2)}
    assert list(map(str, missed_floors(floors, figures(pairs, gather=90e9)))) == [
        "node 1 (host1): pairs with other nodes at 100 GB/s, below 300 GB/s",
        "all-gather of 4.0 GiB over all nodes at 90 GB/s, below 300 GB/s",
    ]
    assert list(map(str, missed_floors(floors, figures({(0, 1): 100e9}, gather=301e9)))) == [
        "node 0 (host0) and node 1 (host1): the pair at 100 GB/s, below 300 GB/s"
    ]
    assert list(map(str, missed_floors(floors, figures({(0, 1): 370e9}, gather=350e9, node_bus=400e9)))) == [
        f"node {number} (host{number}): all-reduce within the node at 400 GB/s, below 460 GB/s" for number in (0, 1)
    ]


def test_the_floor_of_the_whole_world_is_its_slowest_link(tmp_path: Path) -> None:
    found = figures({(0, 1): 370e9}, gather=350e9)
    for within, between, expected in (
        (25.0, 300.0, 25.0),
        (460.0, 300.0, 300.0),
        (0.0, 300.0, 300.0),
        (25.0, 0.0, 0.0),
    ):
        settings = CheckCluster(
            report=tmp_path, minimum_node_bus_gb_per_second=within, minimum_network_gb_per_second=between
        )
        assert world_floor_gb(settings, found) == expected


@pytest.mark.parametrize(
    ("line", "network", "is_fallback"),
    [
        ("node:7:31 [0] NCCL INFO NET/IB : Using [0]mlx5_ib0:1/IB/SHARP [RO]; OOB eth0:10.0.0.4<0>", "IB", False),
        ("node:7:31 [0] NCCL INFO Using network IB", "IB", False),
        ("node:7:31 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.4<0>", "Socket", True),
        ("node:7:31 [0] NCCL INFO Assigned NET plugin Socket to comm", "Socket", True),
        ("node:7:31 [0] NCCL INFO NET/Plugin: no plugin found", None, False),
    ],
)  # fmt: skip
def test_the_network_is_read_from_the_log_of_nccl(line: str, network: str | None, is_fallback: bool) -> None:
    variables = {"NCCL_DEBUG": "WARN"}
    with nccl_log(variables) as folder:
        Path(variables["NCCL_DEBUG_FILE"].replace("%p", "7")).write_text(line + "\n")
        assert network_in_log(folder) == network
    assert variables == {"NCCL_DEBUG": "WARN"}
    assert not folder.exists()
    found = figures({(0, 1): 370e9}, gather=350e9)
    found.network = network
    problems = list(problems_of(CheckCluster(report=Path()), found))
    assert any("over TCP sockets" in problem for problem in problems) == is_fallback


def test_a_mount_without_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(os.urandom(3000))
    assert measure_mount(tmp_path, 2000)["bytes"] == 3000, "a block is read as a whole"
    (tmp_path / "empty").mkdir()
    with pytest.raises(StepError, match="no file to read"):
        measure_mount(tmp_path / "empty", 2000)


def test_one_process_measures_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_cluster.main([str(word) for word in arguments(tmp_path)]) == 0
    document = json.loads((tmp_path / "cluster.json").read_text())
    assert document["collectives"] == []
    assert document["nodes"][0]["disk"]["write_bytes_per_second"] > 0
    assert "node 0: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_four_ranks_measure_every_size_and_pair(tmp_path: Path, nodes: int) -> None:
    exit_codes, outputs = forked_ranks().run("check_cluster", arguments(tmp_path), 4, nodes=nodes)
    assert exit_codes == [0] * 4, outputs
    document = json.loads((tmp_path / "cluster.json").read_text())
    assert len(document["nodes"]) == nodes
    assert len(document["flop_per_second_of_ranks"]) == 4
    sizes = {"all_reduce": set(), "all_gather": set(), "reduce_scatter": set()}
    for each in document["collectives"]:
        sizes[each["operation"]].add(each["bytes"])
        factor = 2 * 3 / 4 if each["operation"] == "all_reduce" else 3 / 4
        assert each["algorithm_bytes_per_second"] == pytest.approx(each["bytes"] / each["seconds"])
        assert each["bus_bytes_per_second"] == pytest.approx(each["algorithm_bytes_per_second"] * factor)
    assert set(map(frozenset, sizes.values())) == {frozenset({65536, 262144, 1048576})}
    expected = {
        "rank_pairs": list(itertools.combinations(range(4), 2)) if nodes == 1 else [(0, 1), (2, 3)],
        "node_pairs": [] if nodes == 1 else [(0, 1)],
    }
    for kind, pairs in expected.items():
        ranks_per_pair = 2 if kind == "node_pairs" else 1
        measured = {(tuple(each["pair"]), each["operation"], each["bytes"]) for each in document[kind]}
        message_bytes = {ranks_per_pair * size for size in (65536, 1048576)}
        assert measured == set(itertools.product(pairs, sizes, message_bytes))
        for each in document[kind]:
            factor = 1 if each["operation"] == "all_reduce" else 1 / 2
            assert each["bus_bytes_per_second"] == pytest.approx(each["bytes"] / each["seconds"] * factor)
    assert len(document["node_bus_bytes_per_second"]) == nodes
    assert (tmp_path / "cluster.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_with_an_odd_number_of_ranks_one_sits_out_each_round(tmp_path: Path) -> None:
    exit_codes, outputs = forked_ranks().run("check_cluster", arguments(tmp_path), 3)
    assert exit_codes == [0] * 3, outputs
    document = json.loads((tmp_path / "cluster.json").read_text())
    assert {tuple(each["pair"]) for each in document["rank_pairs"]} == {(0, 1), (0, 2), (1, 2)}


@pytest.mark.slow
def test_three_nodes_meet_their_neighbours(tmp_path: Path) -> None:
    exit_codes, outputs = forked_ranks().run("check_cluster", arguments(tmp_path), 3, nodes=3)
    assert exit_codes == [0] * 3, outputs
    document = json.loads((tmp_path / "cluster.json").read_text())
    assert {tuple(each["pair"]) for each in document["node_pairs"]} == {(0, 1), (0, 2), (1, 2)}
    assert document["rank_pairs"] == []


@pytest.mark.slow
def test_a_cluster_below_its_floor_fails_with_its_measurements(tmp_path: Path) -> None:
    below = arguments(tmp_path, "--minimum-node-bus-gb-per-second", 100_000)
    exit_codes, outputs = forked_ranks().run("check_cluster", below, 2)
    assert exit_codes == [1, 1]
    assert "below --minimum-node-bus-gb-per-second 100000; the measurements are in" in outputs[0]
    assert "below 100000 GB/s" in json.loads((tmp_path / "cluster.json").read_text())["problems"][-1]


@pytest.mark.slow
def test_a_network_below_its_floor_fails_with_its_measurements(tmp_path: Path) -> None:
    below = arguments(tmp_path, "--minimum-network-gb-per-second", 100_000)
    exit_codes, outputs = forked_ranks().run("check_cluster", below, 2, nodes=2)
    assert exit_codes == [1, 1]
    assert "below --minimum-network-gb-per-second 100000; the measurements are in" in outputs[0]
    problems = "\n".join(json.loads((tmp_path / "cluster.json").read_text())["problems"])
    assert "the pair at" in problems
    assert "over all nodes at" in problems
