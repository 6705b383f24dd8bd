"""The settings of the step that trains with Lightning."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.foundation.configs.training import Training
from trainyard.foundation.step_fields import parameter


@dataclass(frozen=True)
class TrainLightning(Training):
    """Train with Lightning's Trainer, data-parallel: a task, or a LightningModule of your own, on the same samples in
    the same order as the other train steps, with the same checkpoints, metrics and stopping."""

    module: str | None = parameter(None)
    """A LightningModule of your own as `package.module:Class`, trained instead of the task's model. Its training_step
    gets a dictionary of tensors, one per array of the dataset. Optimizer and learning rate are its own."""

    module_arguments: str | None = parameter(None)
    """The arguments of the LightningModule as a JSON object, such as {"hidden_size": 64}."""
