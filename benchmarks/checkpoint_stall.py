"""What checkpoints cost a training: wall time with one every 50 steps and with none, in the same processes.

    python benchmarks/checkpoint_stall.py [--rounds 3] [--steps 50]

Two ranks on this machine's processors train a GPT of 20 million parameters with the DDP engine. Stretches of 50 steps
with a checkpoint (240 MB with the optimizer's state, half of it per rank) alternate with stretches without. Bar: at
most 2 % more time. Exit 1 when it is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results import save_results

RANKS = 2
BAR = 1.02
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
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-stall-"))
    try:
        figures = _run_ranks(folder)
    finally:
        shutil.rmtree(folder)
    print(
        f"{figures['parameters'] / 1e6:.1f} M parameters, {figures['checkpoint_bytes'] / 1e6:.0f} MB per checkpoint, "
        f"steps of {figures['step_seconds'] * 1e3:.0f} ms, a checkpoint every {figures['steps']} steps"
    )
    print(f"standing still for a checkpoint: {figures['stall_seconds_per_save'] * 1e3:.0f} ms")
    print(f"with / without, of the processor's time: {figures['processor_ratio']:.4f}")
    print(f"with / without, by round: {', '.join(f'{ratio:.4f}' for ratio in figures['ratios'])}")
    met = figures["ratio"] <= BAR
    print(f"with / without: {figures['ratio']:.4f}   bar {BAR}   {'met' if met else 'MISSED'}")
    save_results("checkpoint_stall", {"figures": figures, "bars": {"ratio": BAR}})
    return 0 if met else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="steps of a stretch")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of stretches")
    return parser.parse_args()


def _run_ranks(folder: Path) -> dict[str, object]:
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
    figures: dict[str, object] = json.loads((folder / "figures.json").read_text())
    return figures


def _train(steps: int, rounds: int, folder: Path) -> None:
    """Run one rank: both kinds of stretches in turn; then end the process."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from trainyard.foundation.batch_arithmetic import divide_batch
    from trainyard.foundation.configs.training import TrainDDP
    from trainyard.steps.runtime.entrypoint import end_process
    from trainyard.steps.runtime.world import join_world
    from trainyard.steps.training.checkpoints.checkpoints import Checkpoints
    from trainyard.steps.training.engines.base import EngineParts
    from trainyard.steps.training.engines.ddp import DDPEngine
    from trainyard.steps.training.optimizer import AdamWSettings
    from trainyard.steps.training.randomness import seed_everything
    from trainyard.steps.training.samples.plan import Progress

    def new_model() -> torch.nn.Module:
        model: torch.nn.Module = GPT2LMHeadModel(GPT2Config(**MODEL))
        model.loss_type = "ForCausalLM"
        return model

    with join_world(600) as world:
        seed_everything(0)
        settings = TrainDDP(data=folder, model=folder, checkpoints=folder, metrics=folder)
        batch = divide_batch(SAMPLES_PER_RANK * RANKS, SAMPLES_PER_RANK, RANKS)
        engine = DDPEngine(EngineParts(new_model, settings, AdamWSettings(0.3), batch, world))
        checkpoints = Checkpoints(folder / "checkpoints", world, {})
        tokens = torch.randint(MODEL["vocab_size"], (SAMPLES_PER_RANK, MODEL["n_positions"]))
        saves = 0

        def stretch(*, with_checkpoint: bool) -> tuple[float, float]:
            """Return wall-clock seconds, and CPU seconds of this rank."""
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
        pairs = [(stretch(with_checkpoint=False), stretch(with_checkpoint=True)) for _ in range(rounds)]
        without, with_checkpoints, worked_without, worked_with = (
            sum(pair[kind][clock] for pair in pairs) for clock in (0, 1) for kind in (0, 1)
        )
        if world.is_main:
            newest = max((folder / "checkpoints").iterdir())
            figures = {
                "parameters": engine.parameter_count(),
                "checkpoint_bytes": sum(file.stat().st_size for file in newest.iterdir()),
                "steps": steps,
                "step_seconds": without / steps / rounds,
                "stall_seconds_per_save": (checkpoints.stall_seconds - stalled_before) / rounds,
                "ratios": [slow / quick for (quick, _), (slow, _) in pairs],
                "ratio": with_checkpoints / without,
                "processor_ratio": worked_with / worked_without,
            }
            (folder / "figures.json").write_text(json.dumps(figures))
    end_process(0)


if __name__ == "__main__":
    sys.exit(main())
