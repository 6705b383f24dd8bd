"""Trains with several engines in turn, in the processes of one world: a process starts slowly, an engine does not.

    python engine_trainings.py TRAININGS.json DIGITS OUT

Each training is a JSON object: `engine` (ddp, fsdp, deepspeed), `steps`, `learning_rate`, and fields of the engine's
settings; `zero` is the section of DeepSpeed's configuration. Rank 0 writes OUT/<name>.json.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny_transformer import NextLevel

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.settings.steps.tasks import TaskSettings
from trainyard.settings.steps.training import TrainDDP, TrainDeepSpeed, TrainFSDP, TrainHorovod, Training
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.sample_order import SampleOrder
from trainyard.steps.runtime.entrypoint import end_process
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.engine import Engine, EngineParts
from trainyard.steps.training.optimizer import OptimizerSettings
from trainyard.steps.training.randomness import seed_everything
from trainyard.steps.training.samples.batches import as_tensors
from trainyard.steps.training.samples.plan import TrainingPlan

ENGINES: dict[str, tuple[str, type[Training]]] = {
    "ddp": ("replicas.DDPEngine", TrainDDP),
    "fsdp": ("fsdp.FSDPEngine", TrainFSDP),
    "deepspeed": ("deepspeed_engine.DeepSpeedEngine", TrainDeepSpeed),
    "horovod": ("horovod_engine.HorovodEngine", TrainHorovod),
}
SAMPLES = 289
"""One more than nine batches of 32: each tenth step has a single sample, fewer than there are ranks."""
NOWHERE = {name: Path("unused") for name in ("data", "model", "checkpoints", "metrics")}


class EngineTraining:
    """A training of the tiny transformer, step by step under a test's hand."""

    def __init__(
        self,
        world: World,
        data: Path,
        out: Path,
        engine: str,
        *,
        zero: dict[str, Any] | None = None,
        learning_rate: float = 0.003,
        **settings: Any,
    ) -> None:
        manifest = read_manifest(data)
        self.world, self.split = world, SplitReader(data, manifest, "train")
        if zero is not None:
            settings["deepspeed_config"] = _write_config(out, zero, world)
        self.settings = _settings(engine, world, settings)
        batch = divide_batch(self.settings.global_batch_size, self.settings.micro_batch_size, world.size)
        self.plan = TrainingPlan(SAMPLES, batch, epochs=100)
        self.task, self.learning_rate = NextLevel(manifest, TaskSettings()), learning_rate
        module, _, class_name = ENGINES[engine][0].rpartition(".")
        engine_class = getattr(importlib.import_module(f"trainyard.steps.training.engines.{module}"), class_name)
        engine_class.check(self.settings, batch)
        seed_everything(self.settings.seed)
        optimizer = OptimizerSettings.of(self.settings, self.task.settings)
        self.engine: Engine = engine_class(EngineParts(self.task.new_model, self.settings, optimizer, batch, world))
        sample = as_tensors(self.split.gather(np.zeros(1, dtype=np.int64)), pin=False)
        self.engine.warm_up(lambda: self.task.loss(self.engine.model, sample) * 0.0)

    def step(self, number: int, *, loss_factor: float = 1.0) -> tuple[float, float]:
        """Take one step; return its mean loss and the gradient's norm."""
        step = self.plan.step(number)
        order = SampleOrder(self.plan.samples, seed=0, epoch=step.epoch)
        total = torch.zeros((), dtype=torch.float64)
        autocasts = self.engine.uses_autocast and self.settings.precision == "bf16"
        for piece in self.plan.micro_batches(step, self.world.rank):
            batch = as_tensors(self.split.gather(order.sample_ids(piece.start, piece.stop)), pin=False)
            with self.engine.micro_batch(is_last=piece.is_last):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocasts):
                    loss = self.task.loss(self.engine.model, batch) * (0.0 if piece.is_stand_in else loss_factor)
                self.engine.backward(loss, step.samples)
            total += loss.detach()
        norm = self.engine.step(self.learning_rate)
        return float(self.world.sum(total)) / step.samples, float(norm)


def _settings(engine: str, world: World, given: dict[str, Any]) -> Training:
    return ENGINES[engine][1](**{"global_batch_size": 32, "micro_batch_size": 32 // world.size, **NOWHERE, **given})


def _write_config(out: Path, zero: dict[str, Any], world: World) -> Path:
    """Every rank writes its own, as long as nothing else makes them wait for each other."""
    file = out / f"deepspeed-{zero['stage']}-{world.rank}.json"
    # Small models have small parameters only, which stage 3 would otherwise keep whole.
    file.write_text(json.dumps({"zero_optimization": {"stage3_param_persistence_threshold": 100, **zero}}))
    return file


def train(world: World, data: Path, out: Path, name: str, training: dict[str, Any]) -> None:
    """Train as described, and write what came of it."""
    steps = training.pop("steps")
    run = EngineTraining(world, data, out, **training)
    losses, norms = zip(*[run.step(number) for number in range(1, steps + 1)], strict=True)
    if world.is_main:
        (out / f"{name}.json").write_text(json.dumps({"losses": losses, "norms": norms}))


def main(trainings: str, data: str, out: str) -> int:
    """Every training of the file, in its order."""
    with World(60) as world:
        for name, training in json.loads(Path(trainings).read_text()).items():
            train(world, Path(data), Path(out), name, training)
    return 0


if __name__ == "__main__":
    end_process(main(*sys.argv[1:]))
