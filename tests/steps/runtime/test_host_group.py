"""Ranks of several nodes, as real processes, which exchange what is in main memory through the nodes' first ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_ranks import forked_ranks


def run(folder: Path, nodes: list[list[int]], layout: str, leaves: int = -1) -> tuple[list[int], list[str]]:
    """Exit codes and outputs of the ranks of some nodes; the rank `leaves` ends without a word."""
    size = sum(map(len, nodes))
    return forked_ranks().run("host_groups", [folder, json.dumps(nodes), layout, leaves], size, limit_seconds=180)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expected", "layout"),
    [
        ([[0, 1], [2, 3], [4, 5], [6, 7]], "cpu"),
        ([[0, 1], [2, 3], [4, 5], [6, 7]], "gpu"),
        ([[0, 1, 2], [3], [4, 5]], "cpu"),
        ([[0, 3], [1, 4], [2, 5]], "cpu"),  # as Slurm counts them with --distribution=cyclic
        ([[0, 1, 2]], "cpu"),
    ],
)
def test_every_rank_gets_what_all_have_over_few_connections(
    tmp_path: Path, expected: list[list[int]], layout: str
) -> None:
    exit_codes, outputs = run(tmp_path, expected, layout)
    size = sum(map(len, expected))
    assert exit_codes == [0] * size, "\n".join(outputs)
    for rank in range(size):
        found = json.loads((tmp_path / f"rank-{rank}.json").read_text())
        nodes = found.pop("nodes")
        assert nodes == expected
        own = next(node for node in nodes if rank in node)
        # In each of two host groups: to the node's ranks, to the other nodes' first ranks, and to be reached at.
        of_host_group = len(own) + (0 if len(nodes) == 1 else len(nodes) if rank == own[0] else 1)
        # On CPUs of several nodes also to those that are a power of two away, with which sums of gradients go.
        steps = [2**power for power in range(size) if 2**power < size]
        away = {(rank + step) % size for step in (*steps, *(-step for step in steps))}
        of_default = 0 if layout == "gpu" else size if len(nodes) == 1 else len(away) + 1
        # Rank 0 also serves the store, to which every rank is connected.
        of_store = 1 if rank else size + 2
        assert found.pop("sockets") <= 2 * of_host_group + of_default + of_store
        assert found == {
            "gathered": [str(each) for each in range(size)],
            "broadcast": 0,
            "sum": [size, sum(range(size))],
            "by thread": [[each] * each for each in range(size)],
            "main": "of rank 0",
            "error": f"{tmp_path}/missing/{size - 1}: no such file or directory (rank {size - 1})",
            **({"restored": True} if layout == "cpu" else {}),
        }


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["cpu", "gpu"])
@pytest.mark.parametrize("leaves", [2, 3])
def test_a_lost_rank_ends_the_others(tmp_path: Path, leaves: int, layout: str) -> None:
    """A node's first rank, or another, before ranks exchange anything; as with GPUs, only host groups connect them."""
    exit_codes, outputs = run(tmp_path, [[0, 1], [2, 3], [4, 5]], layout, leaves)
    assert exit_codes == [9 if rank == leaves else 1 for rank in range(6)]
    for rank, output in enumerate(outputs):
        assert rank == leaves or f"rank {rank} lost its connection to another rank" in output
