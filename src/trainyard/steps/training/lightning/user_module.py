"""A user's own LightningModule in the place of a task: it has its own loss, optimizer and validation."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from trainyard.foundation.configs.tasks import TaskSettings
from trainyard.foundation.step_fields import parameter
from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.tasks.base import Task
from trainyard.steps.training.tasks.chosen import ChosenTask

_NEEDED = ("training_step", "configure_optimizers")


@dataclass(frozen=True, kw_only=True)
class ModuleSettings(TaskSettings):
    """What a checkpoint must share with a training that resumes from it."""

    module: str = parameter("")
    """The module's import path."""

    module_arguments: str = parameter("{}")
    """Its arguments."""


class ModuleTask(Task):
    """What is left of a task around a LightningModule: to build it, and to save its weights."""

    Settings = ModuleSettings
    settings: ModuleSettings

    def new_model(self) -> torch.nn.Module:
        """Return the module. StepError if it does not take the arguments."""
        try:
            module: LightningModule = _module_class(self.settings.module)(**json.loads(self.settings.module_arguments))
        except TypeError as failure:
            raise StepError(
                f"--module {self.settings.module}: {failure}; give its arguments by --module-arguments"
            ) from None
        if not module.automatic_optimization:
            raise StepError(
                f"--module {self.settings.module} optimizes manually, which train_lightning does not support: let "
                "Lightning call the optimizer (automatic_optimization)"
            )
        return module

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Never called: Lightning calls the module's training_step."""
        raise AssertionError("a LightningModule computes its own loss")

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """Never called: Lightning calls the module's validation_step."""
        raise AssertionError("a LightningModule validates by itself")


def choose_module(path: str, arguments: str | None) -> ChosenTask:
    """Return a LightningModule as a task. SetupError if it cannot be found or lacks a method that it needs."""
    try:
        given = json.loads(arguments or "{}")
    except json.JSONDecodeError as failure:
        raise StepError(f"--module-arguments is not valid JSON: {failure}: {arguments}") from None
    if not isinstance(given, dict):
        raise StepError(f'--module-arguments must be a JSON object such as {{"hidden_size": 64}}; found {arguments}')
    _module_class(path)
    return ChosenTask(path, ModuleTask, ModuleSettings(module=path, module_arguments=json.dumps(given, sort_keys=True)))


def _module_class(path: str) -> Any:
    module_name, _, class_name = path.partition(":")
    if not module_name or not class_name.isidentifier():
        raise SetupError(f"--module {path}: expected package.module:Class")
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)  # may import: not trainyard
    except ModuleNotFoundError as failure:
        raise SetupError(f"--module {path}: the module {failure.name} is missing") from None
    if not (isinstance(found, type) and issubclass(found, LightningModule)):
        raise SetupError(f"--module {path}: {class_name} is not a lightning.pytorch.LightningModule of {module_name}")
    lacking = [name for name in _NEEDED if not is_overridden(name, found, parent=LightningModule)]
    if lacking:
        raise SetupError(f"--module {path}: {class_name} lacks {' and '.join(lacking)}, which Lightning needs")
    return found
