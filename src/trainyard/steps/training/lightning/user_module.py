"""A user's own LightningModule in place of a task: it has its own loss, optimizer and validation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from trainyard.settings.step_fields import flag_of, parameter
from trainyard.settings.steps.tasks import TaskSettings
from trainyard.settings.steps.training import IGNORED_WITH_MODULE, TrainLightning
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.imports import arguments_from_json, call_named, import_named
from trainyard.steps.training.samples.batches import Tensors
from trainyard.steps.training.tasks.chosen import ChosenTask, choose_task
from trainyard.steps.training.tasks.task import Task

_NEEDED = ("training_step", "configure_optimizers")
_NEED_VALIDATION = ("keep_best_checkpoint", "early_stop_patience")


@dataclass(frozen=True, kw_only=True)
class ModuleSettings(TaskSettings):
    """What a checkpoint must share with a training that resumes from it."""

    module: str = parameter("")
    """The module's import path."""

    module_arguments: str = parameter("{}")
    """Its arguments."""

    strategy: str = parameter("ddp")
    """How ranks share it: each way has its own form of the optimizer's state."""


class ModuleTask(Task):
    """What is left of a task around a LightningModule: to build it, and to save its weights."""

    Settings = ModuleSettings
    settings: ModuleSettings

    def __init__(self, manifest: Manifest, settings: ModuleSettings) -> None:
        super().__init__(manifest, settings)
        self.best_is = {**Task.best_is, **getattr(_module_class(settings.module), "best_is", {})}

    def new_model(self) -> torch.nn.Module:
        """Return the module. StepError if it does not take the arguments."""
        path, arguments = self.settings.module, json.loads(self.settings.module_arguments)
        module: LightningModule = call_named("--module", path, _module_class(path), arguments)
        if not module.automatic_optimization:
            raise StepError(
                f"--module {self.settings.module} optimizes manually, which train_lightning does not support: let "
                "Lightning call the optimizer (automatic_optimization)"
            )
        _let_optimizers_be_checked(module, self.settings.module)
        return module

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Never called: Lightning calls the module's training_step."""
        raise AssertionError("a LightningModule computes its own loss")

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """Never called: Lightning calls the module's validation_step."""
        raise AssertionError("a LightningModule validates by itself")


def choose_module(path: str, given: GivenSettings[TrainLightning]) -> ChosenTask:
    """Return a LightningModule as a task.

    SetupError if it cannot be found or lacks a method that it needs, and StepError for settings without effect on it.
    """
    settings = given.step
    arguments = arguments_from_json("--module-arguments", settings.module_arguments)
    module_class = _module_class(path)
    # What differs from its default. A default may well be given: components pass every setting.
    for name, why in IGNORED_WITH_MODULE.items():
        if getattr(settings, name) != getattr(TrainLightning, name):
            raise StepError(f"{flag_of(name)} has no effect on --module {path}: {why}; leave it out")
    defaults_of_task = choose_task(settings.task, {}).values()
    for name, value in given.task.items():
        if value != defaults_of_task[name]:
            raise StepError(
                f"{flag_of(name)} has no effect on --module {path}, since it is the task's; give arguments of the "
                "module by --module-arguments"
            )
    if not is_overridden("validation_step", module_class, parent=LightningModule):
        for name in _NEED_VALIDATION:
            if getattr(settings, name):
                raise StepError(f"{flag_of(name)} needs a validation_step, which --module {path} lacks; add one")
    if settings.strategy == "fsdp2" and not is_overridden("configure_model", module_class, parent=LightningModule):
        raise SetupError(
            f"--module {path}: {module_class.__name__} lacks configure_model, in which --strategy fsdp2 expects "
            "fully_shard"
        )
    module_arguments = json.dumps(arguments, sort_keys=True)
    own = ModuleSettings(module=path, module_arguments=module_arguments, strategy=settings.strategy)
    return ChosenTask(path, ModuleTask, own)


def _let_optimizers_be_checked(module: LightningModule, path: str) -> None:
    """Have SetupError raised, when Lightning asks the module for its optimizer, unless that is one.

    Lightning itself trains with none, and refuses several with a traceback.
    """
    configure = module.configure_optimizers

    @wraps(configure)
    def checked() -> Any:
        found = configure()
        count = len(list(_optimizers(found)))
        if found is None or count > 1:
            what = f"{count} optimizers" if count else "None"
            raise SetupError(
                f"--module {path}: configure_optimizers returned {what}, where train_lightning expects one optimizer; "
                "give it a group of parameters for each of several sets of settings"
            )
        return found

    module.configure_optimizers = checked  # type: ignore[method-assign]


def _optimizers(found: Any) -> Iterator[torch.optim.Optimizer]:
    """The optimizers in what configure_optimizers may return: one, a dictionary with one, or lists of either."""
    if isinstance(found, torch.optim.Optimizer):
        yield found
    elif isinstance(found, dict):
        yield from _optimizers(found.get("optimizer"))
    elif isinstance(found, (list, tuple)):
        for each in found:
            yield from _optimizers(each)


def _module_class(path: str) -> Any:
    return lightning_class("--module", path, LightningModule, _NEEDED)


def lightning_class(flag: str, path: str, kind: type, needed: Sequence[str]) -> Any:
    """Return a user's class of a kind of Lightning's. SetupError if it cannot be found, or lacks a method."""
    found = import_named(flag, path, "Class")
    class_name = path.partition(":")[2]
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise SetupError(f"{flag} {path}: {class_name} is not a lightning.pytorch.{kind.__name__}")
    lacking = [name for name in needed if not is_overridden(name, found, parent=kind)]
    if lacking:
        raise SetupError(f"{flag} {path}: {class_name} lacks {' and '.join(lacking)}, which Lightning needs")
    return found
