"""What templates see of a step: its dataclass, put the way a component is written.

Trainyard's own steps are imported: their settings need nothing but the standard library. A project's own steps are
the modules below `src/` that call `run_step(SettingsClass, …)`. They are read without being run, since what they import
(torch, a company's packages) need not be installed where YAML is rendered.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from trainyard.project_files import read_text
from trainyard.render import rules
from trainyard.render.project import Project, python_of
from trainyard.settings.files import os_error_reason
from trainyard.settings.step_fields import StepField
from trainyard.settings.steps import STEP_CONFIGS
from trainyard.settings.task_fields import TaskError, UnreadableSettings, fields_of_class, fields_with_task, step_fields
from trainyard.spec.diagnostic import Span, SpecError

_PROPER_NAMES = {"ddp": "DDP", "fsdp": "FSDP", "deepspeed": "DeepSpeed", "tensorflow": "TensorFlow", "ps": "PS"}

_NOT_OWN = ("trainyard", "__pycache__")


_MODEL_TYPE = StepField(
    "model_type", "parameter", "string", "A model type of transformers, such as convnext or llama.", optional=True
)
"""A setting of the built-in tasks, which people bind as often as those of the step."""


@dataclass(frozen=True)
class StepDescription:
    """A step by its name and module, the first sentences of its dataclass, and its fields."""

    name: str
    module: str
    description: str
    fields: tuple[StepField, ...]
    source: Path
    """The folder that becomes a component's snapshot, where the modules of your own tasks are."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Settings that the component's command gives itself, instead of having ports for them."""

    def for_task(self, task: str | None = None) -> StepDescription:
        """Return the step with a task's settings behind its own and the task as default; without one, the step's.

        Raise TaskError for a task that cannot be found, whose settings cannot be read from its source, or that belongs
        in a settings file.
        """
        if self.has_settings_file:
            raise TaskError(f"{self.name} reads its task from its settings file: write `task: …` there")
        task = task or str(self.field["task"].default)
        own, added = fields_with_task(STEP_CONFIGS[self.name], task, [self.source])
        fields = [replace(each, default=task) if each.name == "task" else each for each in own]
        return replace(self, fields=(*fields, *added))

    def for_use(self, name: str, **constants: str) -> StepDescription:
        """Return the step under the name of another component, whose command gives some settings itself."""
        return replace(self, name=name, constants=constants)

    @property
    def has_settings_file(self) -> bool:
        """Whether the step reads its settings from a file, so that its component has few ports."""
        return "settings" in self.field

    @property
    def ports(self) -> tuple[StepField, ...]:
        """The fields that a component has as ports: all, or beside a settings file those that people bind or sweep."""
        if not self.has_settings_file:
            return self.fields
        return tuple(self._ports_beside_settings_file())

    def _ports_beside_settings_file(self) -> Iterator[StepField]:
        """Yield folders and files, and parameters without a default, so that the file's values count."""
        for each in self.fields:
            if each.name in self.constants:
                continue
            if each.kind != "parameter":
                yield each
            elif each.port:
                yield replace(each, default=None, required=False, optional=True)
            if each.name == "task":
                yield _MODEL_TYPE

    @property
    def program(self) -> str:
        """What a command starts the step with. A project of its own has Trainyard's steps in an archive."""
        return f"{python_of(self.source)} -m {self.module}"

    @property
    def title(self) -> str:
        """The name for people: `train_ddp` becomes `Train DDP`."""
        return " ".join(_PROPER_NAMES.get(word, word.capitalize()) for word in self.name.split("_"))

    @property
    def inputs(self) -> tuple[StepField, ...]:
        """Folders and files that are read, then parameters: a component's inputs."""
        data = tuple(port for port in self.ports if port.kind == "input")
        return data + tuple(port for port in self.ports if port.kind == "parameter")

    @property
    def outputs(self) -> tuple[StepField, ...]:
        """Folders that are written: a component's outputs."""
        return tuple(port for port in self.ports if port.kind == "output")

    @property
    def field(self) -> dict[str, StepField]:
        """The fields by name."""
        return {each.name: each for each in self.fields}


def step_descriptions(project: Project) -> dict[str, StepDescription]:
    """Return every step by its name: Trainyard's, and the project's own.

    Raise SpecError for a step of the project whose settings cannot be read.
    """
    return {**own_steps(project), **_steps_of_trainyard(project.source)}


@cache
def _steps_of_trainyard(source: Path) -> dict[str, StepDescription]:
    return {
        name: StepDescription(name, f"trainyard.steps.{name}", _prose(config.__doc__), step_fields(config), source)
        for name, config in STEP_CONFIGS.items()
    }


def own_steps(project: Project) -> dict[str, StepDescription]:
    """Return the steps that a project defines below `src/`, by name; `src/trainyard` is Trainyard's."""
    packages = [folder for folder in sorted(project.source.glob("*/")) if folder.name not in _NOT_OWN]
    found: dict[str, StepDescription] = {}
    for file in (file for package in packages for file in sorted(package.rglob("*.py"))):
        try:
            text = read_text(file, errors="replace")
        except OSError as error:
            raise _unreadable(file, 1, f"cannot be read: {os_error_reason(error)}") from None
        module = ".".join(file.relative_to(project.source).with_suffix("").parts)
        if "run_step(" in text and (step := _read_step(project.source, file, text, module)) is not None:
            found[step.name] = step
    return found


def _read_step(source: Path, file: Path, text: str, module: str) -> StepDescription | None:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise _unreadable(file, error.lineno or 1, f"not valid Python: {error.msg}") from None
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "run_step" and call.args:
            settings = call.args[0]
            if not isinstance(settings, ast.Name) or settings.id not in classes:
                raise _unreadable(file, call.lineno, "run_step() expects a dataclass that this file defines")
            config = classes[settings.id]
            try:
                fields = fields_of_class(file, config.name, [source])
            except UnreadableSettings as error:
                raise _unreadable(error.file, error.line, error.problem) from None
            return StepDescription(module.rpartition(".")[2], module, _prose(ast.get_docstring(config)), fields, source)
    return None


def _prose(text: str | None) -> str:
    return " ".join((text or "").split())


def _unreadable(file: Path, line: int, message: str) -> SpecError:
    hint = "Settings are read without running the step; write them as in trainyard/settings/steps/."
    return SpecError(rules.STEP_SETTINGS.at(Span(file, line, 1, line, 1), message, hint=hint))
