"""The settings of steps and tasks, read from their source without importing it.

Your own modules import torch, which neither rendering nor linting may need. Of a task, the name leads to the class, the
class (or one that it derives from) to its `Settings`, and these to their fields. Built-in steps and tasks are read like
that too: importing the settings of all steps takes ten times as long as reading those of one.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zipimport import ZipImportError, zipimporter

from trainyard.settings.step_fields import (
    StepField,
    describe_field,
    documented_fields,
    input_file,
    input_folder,
    output_folder,
    parameter,
    same_field,
)
from trainyard.settings.suggestions import close_match

_PACKAGE_FOLDER = Path(__file__).parents[2]
"""Where `trainyard` itself lies, whose classes a user's own derive from."""

_STEPS = "trainyard.settings.steps"
"""The module with `STEP_CONFIGS`."""

_BUILT_IN = "trainyard.settings.steps.tasks"
"""The module with `BUILT_IN_TASKS` and `TaskSettings`, which every task's settings derive from."""

_MAKERS = {maker.__name__: maker for maker in (parameter, input_folder, input_file, output_folder)}
_TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "Path": Path}
_MOST_HOPS = 20
"""From module to module after an imported name; more can only be a circle."""


class TaskError(ValueError):
    """A task that cannot be found, or settings that cannot be read from their source."""


class UnreadableSettings(TaskError):
    """Settings that cannot be read from their source: where, and why."""

    def __init__(self, module: _Module, node: ast.expr | ast.stmt, problem: str) -> None:
        self.file, self.line, self.problem = module.file, node.lineno, problem
        super().__init__(f"{self.file}:{self.line}: {problem}")


@cache
def _built_in_tasks() -> dict[str, str]:
    """The name of each built-in task's class of settings."""
    return _class_names(_BUILT_IN, "BUILT_IN_TASKS")


@cache
def built_in_steps() -> dict[str, str]:
    """Return the name of the class of settings of each of Trainyard's own steps, by the step's module."""
    return _class_names(_STEPS, "STEP_CONFIGS")


def _class_names(module_name: str, table_name: str) -> dict[str, str]:
    module = _package_sources().module(module_name)
    assert module is not None
    table = next(filter(None, (_assigned(statement, table_name) for statement in module.tree.body)))
    assert isinstance(table, ast.Dict)
    return {
        ast.literal_eval(key): _last_name(value) for key, value in zip(table.keys, table.values, strict=True) if key
    }


@cache
def _package_sources() -> _Sources:
    return _Sources([_PACKAGE_FOLDER])


@cache
def built_in_step_fields(step: str) -> tuple[StepField, ...] | None:
    """The fields of one of Trainyard's own steps, by its module's name; None for any other name."""
    class_name = built_in_steps().get(step)
    if class_name is None:
        return None
    sources = _package_sources()
    return tuple(sources.fields_of(sources.class_named(_STEPS, class_name)).values())


def steps_with_settings_file() -> list[str]:
    """Return the steps that read a settings file."""
    fields = {step: built_in_step_fields(step) or () for step in built_in_steps()}
    return [step for step, each in fields.items() if any(field.name == "settings" for field in each)]


def task_location(task: str) -> tuple[str, str]:
    """The module and the class in `package.module:Class`. TaskError for anything else."""
    module, colon, class_name = task.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), class_name)):
        return module, class_name
    hint = close_match(task, _built_in_tasks()) or f"Built in: {', '.join(_built_in_tasks())}."
    raise TaskError(f"unknown task {task!r}. {hint} Give one of your own as package.module:Class")


def task_fields(task: str, folders: Sequence[Path] | None = None) -> tuple[StepField, ...]:
    """The settings of a task: its own first, then those that every task has.

    Modules are looked for in `folders`; by default where Python itself looks. TaskError says what is wrong.
    """
    search = [Path(entry) for entry in sys.path] if folders is None else folders  # may import: not trainyard
    class_name = _built_in_tasks().get(task)
    sources = _Sources((*search, _PACKAGE_FOLDER)) if class_name is None else _package_sources()
    if class_name is not None:
        settings = sources.class_named(_BUILT_IN, class_name)
    else:
        settings = sources.settings_of_task(*task_location(task))
    fields = sources.fields_of(settings).values()
    common = sources.fields_of(sources.class_named(_BUILT_IN, "TaskSettings"))
    return tuple(sorted(fields, key=lambda field: field.name in common))


def step_fields(config_class: type) -> tuple[StepField, ...]:
    """Describe every field of a step's dataclass, in the order of declaration. Raises TaskError."""
    return _fields_of_imported(config_class.__module__, config_class.__name__)


@cache
def _fields_of_imported(module_name: str, class_name: str) -> tuple[StepField, ...]:
    """The fields of a class, also of one within a function, of a module that is imported."""
    module = sys.modules[module_name]
    read = _Module(module_name, Path(inspect.getfile(module)), ast.parse(inspect.getsource(module)))
    classes = (each for each in ast.walk(read.tree) if isinstance(each, ast.ClassDef))
    definition = next(each for each in classes if each.name == class_name)
    sources = _Sources([*map(Path, sys.path), _PACKAGE_FOLDER])  # may import: not trainyard
    return tuple(sources.fields_of(_Class(read, definition)).values())


def fields_of_class(file: Path, class_name: str, folders: Sequence[Path]) -> tuple[StepField, ...]:
    """The fields of a dataclass that a file defines or imports, with its modules in `folders`. Raises TaskError."""
    sources = _Sources((*folders, _PACKAGE_FOLDER))
    return tuple(sources.fields_of(sources.class_in(file, class_name)).values())


def fields_with_task(
    config_class: type, task: str, folders: Sequence[Path] | None = None
) -> tuple[tuple[StepField, ...], tuple[StepField, ...]]:
    """A step's own fields, and those that the task adds. TaskError when both have a field of the same name."""
    own, added = step_fields(config_class), task_fields(task, folders)
    if clashing := sorted({field.name for field in own} & {field.name for field in added}):
        raise TaskError(f"the task {task} has a setting {clashing[0]!r}, which the step itself has; rename it")
    return own, added


class _Module(NamedTuple):
    name: str
    file: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name if self.file.name == "__init__.py" else self.name.rpartition(".")[0]

    def statements(self) -> Iterator[ast.stmt]:
        """Those at the module's top, and within its `if` and `try`."""
        pending = list(reversed(self.tree.body))
        while pending:
            statement = pending.pop()
            yield statement
            if isinstance(statement, (ast.If, ast.Try)):
                pending += reversed([*statement.body, *statement.orelse])


class _Class(NamedTuple):
    module: _Module
    definition: ast.ClassDef


class _Sources:
    """Python modules in a list of folders, read but never run."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._modules: dict[str, _Module | None] = {}
        self._fields: dict[tuple[Path, int], dict[str, StepField]] = {}

    def class_named(self, module_name: str, class_name: str) -> _Class:
        """TaskError when there is no such module, or no such class in it."""
        module = self.module(module_name)
        if module is None:
            raise TaskError(f"there is no module {module_name} in the job's code folder")
        found = self._named(module, class_name)
        if found is None:
            classes = [statement.name for statement in module.statements() if isinstance(statement, ast.ClassDef)]
            hint = f". {close_match(class_name, classes)}" if close_match(class_name, classes) else ""
            raise TaskError(f"the module {module_name} has no class {class_name}{hint}")
        return found

    def class_in(self, file: Path, class_name: str) -> _Class:
        """A class that a file defines or imports. TaskError when it does neither."""
        found = self._named(_Module("", file, ast.parse(file.read_bytes())), class_name)
        if found is None:
            raise TaskError(f"{file} has no class {class_name}")
        return found

    def settings_of_task(self, module_name: str, class_name: str) -> _Class:
        settings = self._settings_of(self.class_named(module_name, class_name))
        if settings is None:
            raise TaskError(f"{class_name} in {module_name} does not derive from trainyard.tasks.Task")
        return settings

    def fields_of(self, settings: _Class) -> dict[str, StepField]:
        """The fields of a dataclass, those of its bases first. TaskError at what cannot be read."""
        place = settings.module.file, settings.definition.lineno
        if place not in self._fields:
            self._fields[place] = self._read_fields(settings)
        return self._fields[place]

    def _read_fields(self, settings: _Class) -> dict[str, StepField]:
        fields: dict[str, StepField] = {}
        for base in reversed(settings.definition.bases):
            found = self._class_of(settings.module, base)
            if found is None:
                raise UnreadableSettings(settings.module, base, f"the base class {ast.unparse(base)} cannot be found")
            fields |= self.fields_of(found)
        documentation = documented_fields(settings.definition)
        for statement in settings.definition.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                inherited = fields[name].description if name in fields else ""
                description = documentation.get(name, inherited)
                shared = self._same_field(settings.module, statement.value)
                fields[name] = shared or _read_field(settings.module, statement, name, description)
        return fields

    def _same_field(self, module: _Module, value: ast.expr | None) -> StepField | None:
        """The field of another class that `same_field(Class, "name")` declares again."""
        if not (isinstance(value, ast.Call) and _last_name(value.func) == same_field.__name__ and len(value.args) == 2):
            return None
        owner = self._class_of(module, value.args[0])
        return None if owner is None else self.fields_of(owner).get(_literal(module, value.args[1]))

    def module(self, name: str) -> _Module | None:
        """The module of a name, None if it is in none of the folders. TaskError when it is not valid Python."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> _Module | None:
        path = name.replace(".", "/")
        for folder in self._folders:
            for place in (f"{path}/__init__.py", f"{path}.py"):
                source = _source(folder, place)
                if source is None:
                    continue
                file = folder / place
                try:
                    return _Module(name, file, ast.parse(source))
                except SyntaxError as failure:
                    raise TaskError(f"{file}:{failure.lineno} is not valid Python: {failure.msg}") from None
        return None

    def _settings_of(self, task: _Class) -> _Class | None:
        """The class that a task, or the first of its bases that does, calls `Settings`."""
        for statement in task.definition.body:
            if isinstance(statement, ast.ClassDef) and statement.name == "Settings":
                return _Class(task.module, statement)
            value = _assigned(statement, "Settings")
            if value is not None:
                found = self._class_of(task.module, value)
                if found is None:
                    raise UnreadableSettings(
                        task.module, value, "the class of a task's Settings cannot be found by reading"
                    )
                return found
        bases = (self._class_of(task.module, base) for base in task.definition.bases)
        return next((found for base in bases if base is not None and (found := self._settings_of(base))), None)

    def _class_of(self, module: _Module, expression: ast.expr, hops: int = 0) -> _Class | None:
        """The class that an expression names; None when reading cannot tell, or it is from elsewhere."""
        if isinstance(expression, ast.Subscript):  # of a generic class
            return self._class_of(module, expression.value, hops)
        if isinstance(expression, ast.Name):
            return self._named(module, expression.id, hops)
        if isinstance(expression, ast.Attribute):
            owner = self._imported_module(module, ast.unparse(expression.value))
            return None if owner is None else self._named(owner, expression.attr, hops + 1)
        return None

    def _named(self, module: _Module, name: str, hops: int = 0) -> _Class | None:
        if hops > _MOST_HOPS:
            return None
        for statement in module.statements():
            if isinstance(statement, ast.ClassDef) and statement.name == name:
                return _Class(module, statement)
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    if (alias.asname or alias.name) == name:
                        owner = self.module(_absolute(module, statement))
                        return None if owner is None else self._named(owner, alias.name, hops + 1)
            if (value := _assigned(statement, name)) is not None:
                return self._class_of(module, value, hops + 1)
        return None

    def _imported_module(self, module: _Module, dotted: str) -> _Module | None:
        """The module that a name stands for: `import a.b`, `import a.b as c`, `from a import b`."""
        for statement in module.statements():
            for alias in statement.names if isinstance(statement, (ast.Import, ast.ImportFrom)) else ():
                if (alias.asname or alias.name) == dotted:
                    prefix = f"{_absolute(module, statement)}." if isinstance(statement, ast.ImportFrom) else ""
                    return self.module(prefix + alias.name)
        return None


def _source(folder: Path, place: str) -> bytes | None:
    """What a file of a folder holds, None if it has no such file. The folder may be an archive, as on Python's path."""
    file = folder / place
    if folder.suffix != ".zip":
        return file.read_bytes() if file.is_file() else None
    try:
        return zipimporter(str(folder)).get_data(str(file))
    except (ZipImportError, OSError):
        return None


def _absolute(module: _Module, statement: ast.ImportFrom) -> str:
    """The module that a `from … import` names, also relatively."""
    if not statement.level:
        return statement.module or ""
    package = module.package.split(".")
    return ".".join([*package[: len(package) - statement.level + 1], *filter(None, [statement.module])])


def _assigned(statement: ast.stmt, name: str) -> ast.expr | None:
    targets = statement.targets if isinstance(statement, ast.Assign) else ()
    if isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    if any(isinstance(target, ast.Name) and target.id == name for target in targets):
        assert isinstance(statement, (ast.Assign, ast.AnnAssign))
        return statement.value
    return None


def _last_name(expression: ast.expr) -> str:
    """`c` of `c` and of `a.b.c`; empty for anything else."""
    return str(getattr(expression, "attr", getattr(expression, "id", "")))


def _read_field(module: _Module, statement: ast.AnnAssign, name: str, description: str) -> StepField:
    call = statement.value
    make = _MAKERS.get(_last_name(call.func)) if isinstance(call, ast.Call) else None
    if make is None:
        raise UnreadableSettings(module, statement, f"declare {name} with one of {', '.join(_MAKERS)}")
    assert isinstance(call, ast.Call)
    if not description:
        raise UnreadableSettings(module, statement, f"the setting {name} has no documentation: add a string beneath it")
    hint = _read_annotation(module, statement.annotation)
    arguments = {word.arg: _literal(module, word.value) for word in call.keywords if word.arg is not None}
    try:
        field = make(*[_literal(module, value) for value in call.args], **arguments)
    except TypeError as mistake:
        raise UnreadableSettings(module, statement, str(mistake)) from None
    field.name = name
    return describe_field(field, hint, description, (module.file, statement.lineno))


def _read_annotation(module: _Module, annotation: ast.expr) -> Any:
    """The type of a setting, or that type or None."""
    text = getattr(annotation, "id", None) or ast.unparse(annotation)
    if isinstance(annotation, ast.Constant):
        text = str(annotation.value)
    words = [word.strip() for word in text.removeprefix("Optional[").removesuffix("]").split("|")]
    optional = "None" in words or text.startswith("Optional[")
    kinds = [word for word in words if word != "None"]
    if len(kinds) != 1 or kinds[0] not in _TYPES:
        problem = f"expected one of the types {', '.join(_TYPES)}, each with or without | None, found {text}"
        raise UnreadableSettings(module, annotation, problem)
    return _TYPES[kinds[0]] | None if optional else _TYPES[kinds[0]]


def _literal(module: _Module, expression: ast.expr) -> Any:
    """The value of a literal, or of a name that the module assigns one to."""
    if isinstance(expression, ast.Name):
        values = [value for statement in module.statements() if (value := _assigned(statement, expression.id))]
        expression = values[-1] if values else expression
    try:
        return ast.literal_eval(expression)
    except ValueError:
        problem = "defaults and limits of settings are literals, so that they can be read without running the module"
        raise UnreadableSettings(module, expression, problem) from None
