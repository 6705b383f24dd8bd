"""What check_cluster measures against a plain loop of the same calls: `python benchmarks/check_cluster.py`.

Four local processes over gloo measure in turn, several rounds of each, so that what else the machine does meets both:
each collective over all of them, and over two pairs at once.
The step as a whole is timed too, with messages up to 16 MiB as in profile `local`. Bars: a ratio of 0.9 to 1.1; 60 s.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from results import save_results

if TYPE_CHECKING:
    import torch.distributed as dist

RANKS = 4
SIZE_BYTES = 16 * 2**20
REPETITIONS = 9
ROUNDS = 7


def plain_loop_seconds(operation: str, group: dist.ProcessGroup, repetitions: int) -> float:
    """Return the median seconds of a collective, as anyone would write it; the slowest rank of the group counts."""
    import torch
    import torch.distributed as dist

    message = torch.zeros(SIZE_BYTES // 4)
    part = torch.zeros(SIZE_BYTES // 4 // group.size())

    def call() -> None:
        if operation == "all_reduce":
            dist.all_reduce(message, group=group)
        elif operation == "all_gather":
            dist.all_gather_single(message, part, group=group)
        else:
            dist.reduce_scatter_single(part, message, group=group)

    call()
    seconds = []
    for _ in range(repetitions):
        dist.barrier()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    slowest = torch.tensor(seconds)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return statistics.median(slowest.tolist())


def compare(out: str) -> None:
    """One rank: measure in turn; rank 0 writes the seconds of both."""
    import torch.distributed as dist

    from trainyard.steps.cluster.bandwidth import COLLECTIVES, measure_collective
    from trainyard.steps.runtime.world import World

    with World(120) as world:
        pairs = [dist.new_group([first, first + 1]) for first in range(0, RANKS, 2)]
        groups = {"all ranks": dist.group.WORLD, "pairs": pairs[world.rank // 2]}
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(ROUNDS):
            for who, group in groups.items():
                for collective in COLLECTIVES:
                    ours = measure_collective(collective, world, SIZE_BYTES, REPETITIONS, group).seconds
                    plain = plain_loop_seconds(collective.name, group, REPETITIONS)
                    found.setdefault(f"{collective.name} of {who}", []).append((ours, plain))
        if world.is_main:
            Path(out).write_text(json.dumps(found))


def run_ranks(*words: str) -> float:
    """Run a program on every rank; return the seconds it took."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    start = time.perf_counter()
    processes = [
        subprocess.Popen(
            [sys.executable, *words],
            env={
                **os.environ,
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.DEVNULL,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    assert [process.wait(600) for process in processes] == [0] * RANKS
    return time.perf_counter() - start


def main() -> int:
    """Measure, print, and keep the results. Return 1 where a bar is missed."""
    with tempfile.TemporaryDirectory() as folder:
        step_seconds = run_ranks(
            "-m", "trainyard.steps.check_cluster", "--report", folder, "--largest-message-mib", "16"
        )  # fmt: skip
        file = Path(folder) / "seconds.json"
        run_ranks(__file__, str(file))
        seconds = json.loads(file.read_text())
    ratios: dict[str, float] = {}
    for what, measured in seconds.items():
        found = [ours / plain for ours, plain in measured]
        # What else the machine does lengthens calls and never shortens them: the quickest round of each tells most.
        ratios[what] = min(ours for ours, _ in measured) / min(plain for _, plain in measured)
        print(
            f"{what}, 16 MiB, {RANKS} ranks: {ratios[what]:.3f} x a plain loop ({min(found):.2f} to {max(found):.2f})"
        )
    print(f"the whole step: {step_seconds:.1f} s")
    save_results("check_cluster", {"ratios": ratios, "step_seconds": step_seconds})
    return int(not all(0.9 <= ratio <= 1.1 for ratio in ratios.values()) or step_seconds > 60)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        compare(sys.argv[1])
        os._exit(0)
    sys.exit(main())
