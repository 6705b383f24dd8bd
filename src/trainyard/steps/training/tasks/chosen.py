"""The task of a training or an evaluation: found by its name, with its settings; and kept beside the model."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.settings.step_fields import flag_of
from trainyard.settings.steps.tasks import BUILT_IN_TASKS, TaskSettings
from trainyard.settings.task_fields import TaskError, task_fields, task_location
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import read_json_object, write_json
from trainyard.steps.runtime.imports import import_named
from trainyard.steps.training.tasks.task import Task

_BUILT_IN_CLASSES = {
    "image_classification": "trainyard.steps.training.tasks.image_classification:ImageClassification",
    "language_modeling": "trainyard.steps.training.tasks.language_modeling:LanguageModeling",
    "preferences": "trainyard.steps.training.tasks.preferences:Preferences",
}
assert _BUILT_IN_CLASSES.keys() == BUILT_IN_TASKS.keys()

_FORMAT = "trainyard.task/1"
TASK_FILE = "task.json"
"""In a trained model's folder: the task it was trained for, and the task's settings."""


@dataclass(frozen=True)
class ChosenTask:
    """A task that a step was asked for, by the name it was given, with all of its settings."""

    name: str
    task_class: type[Task]
    settings: TaskSettings

    @property
    def takes_base_model(self) -> bool:
        """Whether its models can be read from a folder; others make their own."""
        return "model_type" in vars(self.settings)

    def starting_from(self, folder: Path) -> ChosenTask:
        """The same task with the model of a folder. StepError for a task that makes its own models."""
        if not self.takes_base_model:
            raise StepError(f"--base-model {folder}: the task {self.name} has no setting model_type, and makes its own")
        changed: Mapping[str, Any] = {"model_type": str(folder)}
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, **changed))

    def on(self, manifest: Manifest) -> Task:
        """The task on a dataset. StepError when the dataset is not for it."""
        return self.task_class(manifest, self.settings)

    def values(self) -> dict[str, Any]:
        """The settings by name."""
        return dict(vars(self.settings))

    def write(self, model_folder: Path, base_digest: str | None = None) -> None:
        """Keep the task beside its trained model, for `task_of_model` to read, and the base model's SHA-256."""
        document: dict[str, Any] = {"format": _FORMAT, "task": self.name, "settings": self.values()}
        if base_digest is not None:
            document["base_model_sha256"] = base_digest
        write_json(model_folder / TASK_FILE, document)


def choose_task(name: str, settings: Mapping[str, Any]) -> ChosenTask:
    """A built-in task, or a user's own as `package.module:Class`, with its defaults where a setting is not given.

    StepError when there is no such task, or it lacks what a task needs.
    """
    task_class = _task_class(name)
    return ChosenTask(name, task_class, task_class.Settings(**settings))


def task_of_model(model_folder: Path, name: str | None, given: Mapping[str, Any]) -> ChosenTask:
    """The task that a model was trained for, as its folder says; `name` and `given` may stand in for a missing file.

    StepError when the folder says otherwise, or when neither says what the task is.
    """
    file = model_folder / TASK_FILE
    if not file.is_file():
        if name is None:
            raise StepError(
                f"{file} is missing, which training writes beside a model: give --task, and the task's settings that "
                "are not at their defaults"
            )
        return choose_task(name, given)
    record = read_json_object(file, _FORMAT)
    saved_name, saved = record.get("task"), record.get("settings")
    if not isinstance(saved_name, str) or not isinstance(saved, dict):
        raise StepError(f"{file} lacks the task's name or its settings: copy it again from where the model was trained")
    if name not in (None, saved_name):
        raise StepError(f"--task {name}: the model was trained for {saved_name}, as {file} says; leave --task out")
    for setting, value in given.items():
        if setting in saved and saved[setting] != value:
            raise StepError(f"{flag_of(setting)} {value}: the model was trained with {saved[setting]}, as {file} says")
    known = {field.name for field in dataclasses.fields(_task_class(saved_name).Settings)}
    if unknown := sorted(saved.keys() - known):
        raise StepError(f"{file} has the setting {unknown[0]!r}, which the task {saved_name} does not have (any more)")
    return choose_task(saved_name, {**given, **saved})


def read_base_digest(model_folder: Path) -> str | None:
    """Return the SHA-256 of the model that training started from, if it is kept beside the trained model."""
    file = model_folder / TASK_FILE
    digest = read_json_object(file, _FORMAT).get("base_model_sha256") if file.is_file() else None
    return digest if isinstance(digest, str) else None


def _task_class(name: str) -> type[Task]:
    try:
        task_fields(name)
        module_name, class_name = task_location(_BUILT_IN_CLASSES.get(name, name))
    except TaskError as mistake:
        raise StepError(f"task {name}: {mistake}") from None
    if name in _BUILT_IN_CLASSES:
        # What this may be decides which changes of code run a job again locally.
        # may import: trainyard.steps.training.tasks.*
        task_class = getattr(importlib.import_module(module_name), class_name)
    else:
        task_class = import_named("task", name, "Class")
    if not (isinstance(task_class, type) and issubclass(task_class, Task)):
        raise StepError(f"task {name}: {class_name} does not derive from trainyard.tasks.Task")
    if missing := sorted(task_class.__abstractmethods__):
        raise StepError(f"task {name}: {class_name} lacks {' and '.join(missing)}, which every task defines")
    return task_class
