"""Merges adapters as a training with weights of 4 bits does.

Such weights need a GPU. Here the ranks hold NaN in their place, which no file may have.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.settings.steps.training import TrainDDP
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.runtime.world import World
from trainyard.steps.training.adapters import new_model, save_trained_model
from trainyard.steps.training.engines.engine import EngineParts
from trainyard.steps.training.engines.replicas import DDPEngine
from trainyard.steps.training.optimizer import OptimizerSettings
from trainyard.steps.training.randomness import seed_everything
from trainyard.steps.training.tasks.chosen import choose_task


def main(data: str, base: str, out: str) -> int:
    """Write a model with adapters of random values. Return the exit code."""
    with World(60) as world:
        merge(world, Path(data), Path(base), Path(out))
    return 0


def merge(world: World, data: Path, base: Path, out: Path) -> None:
    """Build the model on every rank, and write it."""
    (out / "model").mkdir(exist_ok=True)
    chosen = choose_task("language_modeling", {}).starting_from(base)
    task = chosen.on(read_manifest(data))
    settings = TrainDDP(
        **{name: out / name for name in ("model", "checkpoints", "metrics")},
        data=data,
        tuning="lora",
        lora_rank=2,
        merge_adapters=True,
        save_shard_mb=1,
    )
    seed_everything(0)
    optimizer = OptimizerSettings.of(settings, chosen.settings)
    batch = divide_batch(world.size, 1, world.size)
    engine = DDPEngine(EngineParts(partial(new_model, task, settings), settings, optimizer, batch, world))
    for name, parameter in engine.evaluation_model().named_parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.1)
        elif name.endswith("_proj.base_layer.weight"):
            parameter.data.fill_(torch.nan)
    save_trained_model(task, engine, replace(settings, tuning="qlora"), lambda: None)
