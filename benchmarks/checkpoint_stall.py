"""What checkpoints cost: processor time, standing still and wall time, with one every 50 steps and with none.

    python benchmarks/checkpoint_stall.py [--runs 5] [--rounds 3] [--steps 50]

Two ranks on this machine's processors train a GPT of 20 million parameters with the DDP engine. In each round of a run
a stretch of 50 steps with a checkpoint (240 MB with the optimizer's state, half of it per rank) and one without take
turns at coming first. Bars, in every run: processor time of both ranks at most 1.02 times that without, and standing
still for at most 0.2 % of the stretch. Wall time is the mean ratio over the rounds of all runs, with its 95 %
confidence interval (Student's t): where two ranks keep both processors busy, the writer's processor time is wall time
too. Results go to benchmarks/results/checkpoint_stall.json. Exit 1 when a bar is missed. About 15 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import save_results

RANKS = 2
PROCESSOR_BAR, STANDING_STILL_BAR = 1.02, 0.002
MODEL = {
    "bos_token_id": None,
    "eos_token_id": None,
    "n_embd": 512,
    "n_layer": 6,
    "n_head": 8,
    "vocab_size": 2048,
    "n_positions": 128,
}
SAMPLES_PER_RANK = 2


def main() -> int:
    arguments = _arguments()
    if "RANK" in os.environ:
        _train(arguments.steps, arguments.rounds, Path(os.environ["BENCHMARK_FOLDER"]))
    runs, ratios = [], []
    for number in range(1, arguments.runs + 1):
        with tempfile.TemporaryDirectory(prefix="checkpoint-stall-") as folder:
            figures = _run_ranks(Path(folder))
        if number == 1:
            print(
                f"{figures['parameters'] / 1e6:.1f} M parameters, {figures['checkpoint_bytes'] / 1e6:.0f} MB per "
                f"checkpoint, steps of {figures['step_seconds'] * 1e3:.0f} ms, a checkpoint every {arguments.steps}"
            )
        print(
            f"run {number}: {figures['processor_ratio']:.4f} x the processor time (bar {PROCESSOR_BAR}), "
            f"{figures['standing_still']:.3%} of the time standing still (bar {STANDING_STILL_BAR:.1%}), wall time by "
            f"round {', '.join(f'{ratio:.4f}' for ratio in figures['ratios'])}"
        )
        runs.append(figures)
        ratios += figures["ratios"]
    missed = sum(run["processor_ratio"] > PROCESSOR_BAR or run["standing_still"] > STANDING_STILL_BAR for run in runs)
    wall: dict[str, Any] = {"ratio": statistics.mean(ratios), "ratio_95_percent": _mean_confidence(ratios)}
    low, high = wall["ratio_95_percent"]
    print(f"wall time: {wall['ratio']:.4f} x ({low:.4f} to {high:.4f}, {len(ratios)} rounds)")
    print(f"bars met in {len(runs) - missed} of {len(runs)} runs")
    bars = {"processor_ratio": PROCESSOR_BAR, "standing_still": STANDING_STILL_BAR}
    save_results("checkpoint_stall", {"steps": arguments.steps, "runs": runs, "wall": wall, "bars": bars})
    return int(missed > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="how often both ranks are started")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of stretches in a run")
    parser.add_argument("--steps", type=int, default=50, help="steps of a stretch")
    return parser.parse_args()


def _mean_confidence(values: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean."""
    from scipy import stats

    mean, error = statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values))
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean - reach, mean + reach


def _run_ranks(folder: Path) -> dict[str, Any]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    ranks = []
    for rank in range(RANKS):
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "BENCHMARK_FOLDER": str(folder),
        }
        ranks.append(subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **variables}))
    try:
        if any(rank.wait() for rank in ranks):
            sys.exit("a rank failed")
    finally:
        for rank in ranks:
            rank.kill()
    figures: dict[str, Any] = json.loads((folder / "figures.json").read_text())
    return figures


def _train(steps: int, rounds: int, folder: Path) -> None:
    """Run one rank: both kinds of stretches in turn; then end the process."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from trainyard.settings.batch_arithmetic import divide_batch
    from trainyard.settings.steps.training import TrainDDP
    from trainyard.steps.runtime.entrypoint import end_process
    from trainyard.steps.runtime.world import World
    from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
    from trainyard.steps.training.engines.engine import EngineParts
    from trainyard.steps.training.engines.replicas import DDPEngine
    from trainyard.steps.training.optimizer import OptimizerSettings
    from trainyard.steps.training.randomness import seed_everything
    from trainyard.steps.training.samples.plan import Progress

    def new_model() -> torch.nn.Module:
        model: torch.nn.Module = GPT2LMHeadModel(GPT2Config(**MODEL))
        model.loss_type = "ForCausalLM"
        return model

    with World(600) as world:
        seed_everything(0)
        settings = TrainDDP(data=folder, model=folder, checkpoints=folder, metrics=folder)
        batch = divide_batch(SAMPLES_PER_RANK * RANKS, SAMPLES_PER_RANK, RANKS)
        engine = DDPEngine(EngineParts(new_model, settings, OptimizerSettings(0.3), batch, world))
        checkpoints = Checkpoints(folder / "checkpoints", world, {})
        tokens = torch.randint(MODEL["vocab_size"], (SAMPLES_PER_RANK, MODEL["n_positions"]))
        saves = 0

        def stretch(*, with_checkpoint: bool) -> tuple[float, float]:
            """Return wall-clock seconds, and this rank's processor seconds."""
            nonlocal saves
            world.barrier()
            started, worked = time.perf_counter(), time.process_time()
            for step in range(steps):
                with engine.micro_batch(is_last=True):
                    loss = engine.model(input_ids=tokens, labels=tokens).loss
                    engine.backward(loss, RANKS)
                checkpoints.before_update()
                engine.step(1e-4)
                if with_checkpoint and step == 0:
                    saves += 1
                    checkpoints.save(engine, Progress(step=saves))
            checkpoints.finish()
            world.barrier()
            return time.perf_counter() - started, time.process_time() - worked

        stretch(with_checkpoint=True)  # the first one also makes the buffers
        stalled_before = checkpoints.stall_seconds
        walls: dict[bool, list[float]] = {False: [], True: []}
        worked = {False: 0.0, True: 0.0}
        for number in range(rounds):
            for kind in (False, True) if number % 2 == 0 else (True, False):
                seconds, processor_seconds = stretch(with_checkpoint=kind)
                walls[kind].append(seconds)
                worked[kind] += world.sum(torch.tensor(processor_seconds, dtype=torch.float64)).item()
        if world.is_main:
            newest = max((folder / "checkpoints").iterdir())
            figures = {
                "parameters": engine.parameter_count,
                "checkpoint_bytes": sum(file.stat().st_size for file in newest.iterdir()),
                "step_seconds": sum(walls[False]) / steps / rounds,
                "standing_still": (checkpoints.stall_seconds - stalled_before) / sum(walls[True]),
                "ratios": [slow / quick for quick, slow in zip(walls[False], walls[True], strict=True)],
                "processor_ratio": worked[True] / worked[False],
            }
            (folder / "figures.json").write_text(json.dumps(figures))
    end_process(0)


if __name__ == "__main__":
    sys.exit(main())
