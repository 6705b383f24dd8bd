"""What a step of train_horovod costs, compared with a hand-written loop with Horovod's DistributedOptimizer.

    make setup-horovod && make bench ONLY=horovod_overhead

As step_overhead.py, in which the others are: two processes on this machine's CPU take turns in short windows of steps.
Horovod's own fusion of tensors has its default size for both. Results go to benchmarks/results/horovod_overhead.json.
Exit 1 when the bar is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn import functional

from results import save_results
from step_overhead import CASES, CLIP_NORM, LIMIT_SECONDS, WORLD_SIZE, Case, Turns, new_network, ours, run_ranks
from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.runtime.world import World
from trainyard.steps.training.randomness import ask_for_determinism
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.stopping import StopRequest
from whole_loop import Loop

CASE = CASES[1]
BAR_RATIO = 1.01
STEP, BARE = "train_horovod", "bare Horovod"
FUSION_BYTES = 128 * 2**20
"""Horovod's default, which train_horovod turns off for its own buckets."""


def bare(case: Case) -> Loop:
    """A hand-written loop that clips gradients as Horovod's documentation shows. Horovod runs already."""
    import horovod.torch as horovod

    network, optimizer = new_network(case)
    optimizer = horovod.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())

    def loop(batches: Iterator[Tensors]) -> None:
        for batch in batches:
            functional.cross_entropy(network(batch["inputs"]), batch["labels"]).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP_NORM)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()

    return loop


def rank_main(out: Path, rounds: int) -> int:
    """Run one of the two processes that measure."""
    from trainyard.steps.training.engines.horovod_engine import HorovodEngine

    ask_for_determinism()
    stop_request = StopRequest(out / "stop", LIMIT_SECONDS)
    with World(120) as world:
        contenders = {STEP: ours(CASE, world, out, stop_request, engine_class=HorovodEngine), BARE: bare(CASE)}
        turns = Turns(CASE, list(contenders))
        turns.play(contenders, rounds)
        if world.is_main:
            (out / "seconds.json").write_text(json.dumps(turns.seconds))
    return 0


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Start the two processes, and return the seconds per step of each window."""
    command = [sys.executable, __file__, "--rank-folder", str(folder), "--rounds", str(rounds)]
    run_ranks(command, {"HOROVOD_FUSION_THRESHOLD": FUSION_BYTES})
    seconds: dict[str, list[float]] = json.loads((folder / "seconds.json").read_text())
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=CASE.rounds, help="windows per contender")
    parser.add_argument("--rank-folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_folder is not None:
        return rank_main(arguments.rank_folder, arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(Path(folder), arguments.rounds)
    ratio = statistics.median(own / other for own, other in zip(seconds[STEP], seconds[BARE], strict=True))
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    for name, median in medians.items():
        print(f"{name:<14} {1000 * median:8.3f} ms a step")
    print(f"{STEP} takes {ratio:.3f} of {BARE}; the bar is {BAR_RATIO}")
    figures = {"rounds": arguments.rounds, "median_step_seconds": medians, "ratio": ratio, "bar_ratio": BAR_RATIO}
    save_results("horovod_overhead", {"case": CASE.name, "processes": WORLD_SIZE, **figures})
    return int(ratio > BAR_RATIO)


if __name__ == "__main__":
    end_process(main())
