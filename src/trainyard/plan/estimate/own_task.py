"""A task of a user's own: its model is counted on one sample of its dataset, as shapes without values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError
from trainyard.plan.estimate.image_models import ImageModel
from trainyard.plan.estimate.meta_model import count_without_values
from trainyard.settings.task_fields import TaskError, task_fields
from trainyard.settings.written_settings import value_of_yaml


def model_of_task(task: str, dataset: Path, folder: Path) -> ImageModel:
    """Return the model of a task as its loss computes it for one sample of a dataset.

    `task` is `package.module:Class`, or a settings file with a key `task`, whose settings the task then has. The task's
    code is imported and runs; its modules are looked for in `folder` first. UsageError for what is missing or wrong.
    """
    sys.path.insert(0, str(folder))
    try:
        # A task's own code needs the steps, so here they are imported: nothing else outside of a job does that.
        steps = {name: import_module(f"trainyard.steps.{module}") for name, module in _NEEDED.items()}
        name, settings = (task, {}) if ":" in task else _from_settings_file(steps["files"], Path(task))
        chosen = steps["tasks"].choose_task(name, settings).on(steps["datasets"].read_manifest(dataset))
        return _counted(chosen, name)
    except ImportError as error:
        extra = "those of the steps: pip install 'trainyard-azureml[train]'"
        raise UsageError(f"--task {task}: the package {error.name} is missing; {extra}") from None
    except (TaskError, ValueError) as error:
        raise UsageError(f"--task {task}: {error}") from None


_NEEDED = {
    "tasks": "training.tasks.chosen",
    "datasets": "data.dataset.manifest",
    "files": "runtime.settings_file",
}


def _from_settings_file(files: Any, file: Path) -> tuple[str, dict[str, Any]]:
    written: Mapping[str, Any] = files.read_settings_file(file)
    if "task" not in written:
        raise UsageError(f"{file} names no task; expected the key `task`, or --task package.module:Class")
    name = str(written["task"].text)
    keys = {field.name: field for field in task_fields(name)}
    given = {key: value_of_yaml(keys[key], each.data, each.text) for key, each in written.items() if key in keys}
    return name, {key: value for key, value in given.items() if value is not None}


def _counted(task: Any, name: str) -> ImageModel:
    import torch

    def sample() -> dict[str, Any]:
        batch: dict[str, Any] = {
            name: torch.zeros((1, *array.shape), dtype=getattr(torch, array.dtype))
            for name, array in task.manifest.arrays.items()
        }
        if task.needs_sample_draws:
            batch["sample_draws"] = torch.zeros(1, dtype=torch.int64)
        batch |= task.prepare(batch)
        return batch

    with torch.device("meta"):
        model = task.new_model()
    blocks, around = count_without_values(model, lambda: task.loss(model, sample()), name)
    return ImageModel(name, tuple(blocks), around, samples="samples")
