"""From a step's dataclass to its command line, its settings file and overrides: checked before anything heavy is
imported."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from trainyard.settings.step_fields import StepField, flag_of
from trainyard.settings.suggestions import closest
from trainyard.settings.task_fields import TaskError, fields_with_task, step_fields
from trainyard.settings.written_settings import (
    SettingValue,
    has_settings_file,
    keys_of_file,
    tasks_with,
    value_of_text,
    value_of_yaml,
    why_unknown,
)
from trainyard.steps.runtime.settings_file import SettingsError, YamlSetting, read_overrides, read_settings_file

Config = TypeVar("Config")
Config_co = TypeVar("Config_co", covariant=True)
Value = SettingValue | Path
Written = Mapping[str, YamlSetting]

_VALUE_NAMES = {"integer": "N", "number": "X", "boolean": "true|false", "string": "TEXT", "uri_file": "FILE"}


@dataclass(frozen=True)
class GivenSettings(Generic[Config_co]):
    """The settings that a step was given, and where."""

    step: Config_co
    task: Mapping[str, Value | None] = field(default_factory=dict)
    """The settings of the step's task that were given."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where each setting that was given comes from: `settings/ddp.yaml:7`, `--epochs` or `overrides`."""


class _StepParser(argparse.ArgumentParser):
    """Reports what is wrong and how to see all flags; exits with 2, as for all wrong usage."""

    def error(self, message: str) -> NoReturn:
        self.stop(f"{message}\n  run `{self.prog} --help` to see every flag.")

    def stop(self, message: str) -> NoReturn:
        """Exit with 2 and what is wrong."""
        program = self.prog.removeprefix("python -m ")
        self.exit(2, f"{program}: error: {message}\n")


def parse_flags(config_class: type[Config], program: str, arguments: Sequence[str] | None = None) -> Config:
    """Return the config that the command line describes, and the settings file and overrides that it gives.

    `program` is the module to run, as in `trainyard.steps.train_ddp`. Abbreviations are rejected, so that a new flag
    never changes the meaning of an old command. Exits with 2 and one line on a wrong or missing flag, key or value.
    """
    return parse_task_flags(config_class, program, arguments, with_task=False).step


def parse_task_flags(
    config_class: type[Config], program: str, arguments: Sequence[str] | None = None, *, with_task: bool = True
) -> GivenSettings[Config]:
    """Return the config of a step with a task, those of the task's settings that are given, and where each was given.

    Each setting is taken from where it counts most: overrides, flags, the settings file, its default. The task decides
    which other flags and keys there are; `--help` shows those of the task beside the step's own. Exits with 2 as
    `parse_flags` does, also on a flag or a key of another task.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    own = step_fields(config_class)
    parser = _new_parser(config_class, program, own)
    file, overrides = _written_values(parser, own, arguments)
    task: str | None = None
    of_task: tuple[StepField, ...] = ()
    if with_task and any(field.name == "task" for field in own):
        task = _chosen_task(config_class, arguments, file, overrides)
        of_task = _fields_of_task(config_class, task, parser, [overrides, file])
    if of_task:
        group = parser.add_argument_group(f"settings of the task {task}")
        for added in of_task:
            _add_flag(group, added, is_required=False)
    _refuse_unknown_flags(parser, arguments, task)
    flags: dict[str, Value] = vars(parser.parse_args(arguments))
    keys = keys_of_file(own, of_task)
    step_name = program.rpartition(".")[2]
    for key, written in (*file.items(), *overrides.items()):
        if key not in keys:
            parser.stop(f"{written.origin}: {why_unknown(key, step_name, own, keys, task)}")
    values = {**_typed_values(parser, keys, file), **flags, **_typed_values(parser, keys, overrides)}
    # Without a default, the settings of a task may be in the folder of a model.
    all_settings = own if getattr(config_class, "task", None) is None else (*own, *of_task)
    if missing := [field.flag for field in all_settings if field.required and field.name not in values]:
        parser.error(f"the following arguments are required: {', '.join(missing)}")
    origins = {
        **{key: written.origin for key, written in file.items()},
        **{name: flag_of(name) for name in flags},
        **{key: written.origin for key, written in overrides.items()},
    }
    own_values = {field.name: values.get(field.name, field.default) for field in own}
    task_values = {field.name: values[field.name] for field in of_task if field.name in values}
    return GivenSettings(config_class(**own_values), task_values, origins)


def _written_values(parser: _StepParser, own: Sequence[StepField], arguments: Sequence[str]) -> tuple[Written, Written]:
    """Return what is written in the settings file, and in the overrides, of a step that has them."""
    if not has_settings_file(own):
        return {}, {}
    file, overrides = _early_flag("settings", arguments), _early_flag("overrides", arguments)
    try:
        return (
            read_settings_file(Path(file)) if file else {},
            read_overrides(overrides) if overrides else {},
        )
    except SettingsError as error:
        parser.stop(str(error))


def _chosen_task(config_class: type, arguments: Sequence[str], file: Written, overrides: Written) -> str | None:
    """Return the task that the overrides, the flag or the file name, else the step's default, else None."""
    default: str | None = getattr(config_class, "task", None)
    in_overrides, in_file = (written["task"].text if "task" in written else None for written in (overrides, file))
    return in_overrides or _early_flag("task", arguments) or in_file or default


def _early_flag(name: str, arguments: Sequence[str]) -> str | None:
    """Return the value of a flag that decides which others there are."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # A flag without its value is rejected when all flags are read.
    parser.add_argument("--" + name, nargs="?", dest="value")
    value: str | None = parser.parse_known_args(arguments)[0].value
    return value


def _fields_of_task(
    config_class: type, task: str | None, parser: _StepParser, written: Sequence[Written]
) -> tuple[StepField, ...]:
    if task is None:
        return ()
    try:
        return fields_with_task(config_class, task)[1]
    except TaskError as error:
        for values in written:
            if "task" in values and values["task"].text == task:
                parser.stop(f"{values['task'].origin}: task: {error}")
        parser.error(f"argument --task: {error}")


def _typed_values(parser: _StepParser, keys: Mapping[str, StepField], written: Written) -> dict[str, Value | None]:
    """Return the values of a settings file or of overrides by the types of their settings."""
    values: dict[str, Value | None] = {}
    for key, value in written.items():
        try:
            values[key] = value_of_yaml(keys[key], value.data, value.text)
        except ValueError as error:
            parser.stop(f"{value.origin}: {key}: {error}")
    return values


def _new_parser(config_class: type, program: str, fields: Sequence[StepField]) -> _StepParser:
    """Return the argument parser of a step; its help is the documentation of the class and its fields."""
    example = " ".join(f"{field.flag} {_value_name(field)}" for field in fields if field.required)
    parser = _StepParser(
        prog=f"python -m {program}",
        description=config_class.__doc__,
        epilog=f"example: python -m {program} {example}",
        allow_abbrev=False,
    )
    for described in fields:
        # A required setting may come from the settings file.
        _add_flag(parser, described, is_required=described.required and described.kind != "parameter")
    return parser


def _add_flag(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, field: StepField, *, is_required: bool
) -> None:
    options: dict[str, Any] = {"nargs": "?", "const": True} if field.type == "boolean" else {}
    parser.add_argument(
        field.flag,
        dest=field.name,
        help=_help(field),
        required=is_required,
        default=argparse.SUPPRESS,
        type=_converter(field),
        metavar=_value_name(field),
        **options,
    )


def _refuse_unknown_flags(parser: _StepParser, arguments: list[str], task: str | None = None) -> None:
    """Suggest what was meant, before argparse complains about the required flag that was misspelt."""
    known = [flag for action in parser._actions for flag in action.option_strings]
    for argument in arguments:
        if argument == "--":
            return
        flag = argument.partition("=")[0]
        if not flag.startswith("--") or flag in known:
            continue
        owners = tasks_with(flag.removeprefix("--").replace("-", "_")) if "--task" in known else []
        belongs = f"it belongs to {' and '.join(owners)}"
        if owners and task is None:
            parser.error(f"{flag} is a setting of a task, and --task is not given; {belongs}")
        if owners:
            parser.error(f"unknown flag {flag} for the task {task}; {belongs}")
        meant = closest(flag, known)
        parser.error(f"unknown flag {flag}" + (f"; did you mean {meant}?" if meant else ""))


def _value_name(field: StepField) -> str:
    if field.choices:
        return "{" + ",".join(field.choices) + "}"
    return _VALUE_NAMES.get(field.type, "FOLDER")


def _help(field: StepField) -> str:
    note = " (required)" if field.required else ""
    if field.default is not None:
        note = f" (default: {field.default})"
    return (field.description + note).replace("%", "%%")


def _converter(field: StepField) -> Callable[[str], Value]:
    """Return a function from the flag's text to its value; its errors name the value and what is expected."""

    def converted(text: str) -> Value:
        if field.kind != "parameter":
            if not text:
                what = "file" if field.type == "uri_file" else "folder"
                raise argparse.ArgumentTypeError(f"expected a {what}, got an empty name")
            return Path(text)
        try:
            return value_of_text(field, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted
