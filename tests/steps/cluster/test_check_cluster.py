"""Measuring a cluster: real ranks over gloo, and what is concluded from figures."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from forked_ranks import forked_ranks
from hypothesis import given
from hypothesis import strategies as st

from trainyard.steps import check_cluster
from trainyard.steps.cluster.bandwidth import message_sizes, rounds_of_pairs
from trainyard.steps.cluster.network import falls_back_to_sockets, nccl_log, network_in_log
from trainyard.steps.cluster.node import gpu_problems, measure_mount, read_gpu_table
from trainyard.steps.cluster.picture import size_text
from trainyard.steps.cluster.slow import rates_of_units, slow_ones
from trainyard.steps.runtime.errors import StepError

QUICK = ("--largest-message-mib", 1, "--disk-mib", 1, "--repetitions", 2)


def arguments(report: Path, *more: object) -> list[object]:
    return ["--report", report, *QUICK, *more]


@given(count=st.integers(1, 40))
def test_in_a_whole_tournament_every_pair_meets_once(count: int) -> None:
    rounds = list(rounds_of_pairs(count, most_rounds=100))
    assert all(partners[partners[unit]] == unit != partners[unit] for partners in rounds for unit in partners)
    meetings = Counter((unit, other) for partners in rounds for unit, other in partners.items() if unit < other)
    assert meetings == Counter(itertools.combinations(range(count), 2))


def test_a_large_cluster_plays_some_rounds_of_the_tournament() -> None:
    rounds = list(rounds_of_pairs(512, most_rounds=16))
    assert len(rounds) == 16
    assert all(len(partners) == 512 for partners in rounds)


def test_message_sizes_grow_fourfold_to_the_largest() -> None:
    assert message_sizes(64, 1024) == [64, 256, 1024]
    assert message_sizes(64, 1000) == [64, 256, 1000]
    assert message_sizes(64, 64) == [64]
    assert [size_text(size) for size in (512, 65536, 2**20, 3 * 2**29)] == ["512 bytes", "64 KiB", "1 MiB", "1.5 GiB"]


@pytest.mark.parametrize(("count", "most_rounds"), [(3, 99), (8, 99), (64, 16)])
def test_the_slow_node_is_named_by_its_pairs(count: int, most_rounds: int) -> None:
    slow_node = count - 2
    pairs = {
        (unit, other): 5e9 if slow_node in (unit, other) else 24e9
        for partners in rounds_of_pairs(count, most_rounds)
        for unit, other in partners.items()
        if unit < other
    }
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
    gpus = read_gpu_table(table)
    assert gpus[1]["uncorrected_ecc_errors"] == "3"
    assert list(gpu_problems(gpus)) == [
        "GPU 1 has counted 3 uncorrected memory errors (ECC); have the node replaced",
        "its GPUs have different highest clocks: 1095, 1410",
    ]
    (t4,) = read_gpu_table("0, Tesla T4, 535.183.01, 15360, 300, 1590, [N/A], [N/A], 40, 70.00\n")
    assert "ecc" not in t4
    assert list(gpu_problems([t4])) == []


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
        assert falls_back_to_sockets(network) == is_fallback
    assert variables == {"NCCL_DEBUG": "WARN"}
    assert not folder.exists()


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
    assert document["pairs_of"] == ("rank" if nodes == 1 else "node")
    pairs = [each["pair"] for each in document["pairs"]]
    assert pairs == [list(pair) for pair in itertools.combinations(range(4 if nodes == 1 else 2), 2)]
    assert len(document["node_bus_bytes_per_second"]) == nodes
    assert (tmp_path / "cluster.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_cluster_below_its_floor_fails_with_its_measurements(tmp_path: Path) -> None:
    below = arguments(tmp_path, "--minimum-node-bus-gb-per-second", 100_000)
    exit_codes, outputs = forked_ranks().run("check_cluster", below, 2)
    assert exit_codes == [1, 1]
    assert "below --minimum-node-bus-gb-per-second 100000; the measurements are in" in outputs[0]
    assert "below 100000 GB/s" in json.loads((tmp_path / "cluster.json").read_text())["problems"][-1]
