"""From a step's dataclass to its command line: one flag per field, checked before anything heavy is imported."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from trainyard.settings.step_fields import StepField, step_fields
from trainyard.settings.steps.tasks import BUILT_IN_TASKS
from trainyard.settings.task_fields import TaskError, fields_with_task, task_fields
from trainyard.settings.typed_values import SettingValue, value_of_text

Config = TypeVar("Config")
Value = SettingValue | Path

_VALUE_NAMES = {"integer": "N", "number": "X", "boolean": "true|false", "string": "TEXT"}


class _StepParser(argparse.ArgumentParser):
    """Reports what is wrong and how to see all flags; exits with 2, as for all wrong usage."""

    def error(self, message: str) -> NoReturn:
        program = self.prog.removeprefix("python -m ")
        self.exit(2, f"{program}: error: {message}\n  run `{self.prog} --help` to see every flag.\n")


def parse_flags(config_class: type[Config], program: str, arguments: Sequence[str] | None = None) -> Config:
    """Return the config that the command line describes.

    `program` is the module to run, as in `trainyard.steps.train_ddp`. Abbreviations are rejected, so that a new flag
    never changes the meaning of an old command. Exits with 2 and one line on a wrong or missing flag.
    """
    parser = _new_parser(config_class, program, step_fields(config_class))
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _refuse_unknown_flags(parser, arguments)
    return config_class(**vars(parser.parse_args(arguments)))


def parse_task_flags(
    config_class: type[Config], program: str, arguments: Sequence[str] | None = None
) -> tuple[Config, dict[str, Value]]:
    """Return the config of a step with a task, and those of the task's settings that are given.

    In two stages, because `--task` decides which other flags there are; `--help` shows those of the task beside it.
    Exits with 2 on a wrong flag, also on one of another task, as `parse_flags` does.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    task = _chosen_task(config_class, arguments)
    try:
        own, added = (step_fields(config_class), ()) if task is None else fields_with_task(config_class, task)
    except TaskError as error:
        _new_parser(config_class, program, step_fields(config_class)).error(f"argument --task: {error}")
    parser = _new_parser(config_class, program, own)
    group = parser.add_argument_group(f"settings of the task {task}")
    must_be_given = getattr(config_class, "task", None) is not None  # else a model's folder may hold them
    for field in added:
        # Absent unless given: the task's own class has the defaults.
        _add_flag(group, field, required=field.required and must_be_given, default=argparse.SUPPRESS)
    _refuse_unknown_flags(parser, arguments, task)
    values = vars(parser.parse_args(arguments))
    given = {field.name: values.pop(field.name) for field in added if field.name in values}
    return config_class(**values), given


def _chosen_task(config_class: type, arguments: list[str]) -> str | None:
    """Return the value of `--task`, else the step's default, else None."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # A flag without its value is rejected when all flags are read.
    parser.add_argument("--task", nargs="?", default=getattr(config_class, "task", None))
    task: str | None = parser.parse_known_args(arguments)[0].task
    return task


def _new_parser(config_class: type, program: str, fields: Sequence[StepField]) -> _StepParser:
    """Return the argument parser of a step; its help is the documentation of the class and its fields."""
    example = " ".join(f"{field.flag} {_value_name(field)}" for field in fields if field.required)
    parser = _StepParser(
        prog=f"python -m {program}",
        description=config_class.__doc__,
        epilog=f"example: python -m {program} {example}",
        allow_abbrev=False,
    )
    for field in fields:
        _add_flag(parser, field, required=field.required, default=field.default)
    return parser


def _add_flag(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    field: StepField,
    *,
    required: bool,
    default: Value | None,
) -> None:
    options: dict[str, Any] = {"nargs": "?", "const": True} if field.type == "boolean" else {}
    parser.add_argument(
        field.flag,
        dest=field.name,
        help=_help(field),
        required=required,
        default=default,
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
        owners = [name for name in BUILT_IN_TASKS if flag in {field.flag for field in task_fields(name)}]
        if "--task" in known and owners:
            belongs = f"it belongs to {' and '.join(owners)}"
            parser.error(
                f"{flag} is a setting of a task, and --task is not given; {belongs}"
                if task is None
                else f"unknown flag {flag} for the task {task}; {belongs}"
            )
        close = difflib.get_close_matches(flag, known, n=1) or difflib.get_close_matches(
            flag.replace("_", "-").lower(), known, n=1
        )
        parser.error(f"unknown flag {flag}" + (f"; did you mean {close[0]}?" if close else ""))


def _value_name(field: StepField) -> str:
    if field.choices:
        return "{" + ",".join(field.choices) + "}"
    return _VALUE_NAMES[field.type] if field.kind == "parameter" else "FOLDER"


def _help(field: StepField) -> str:
    note = f" (default: {field.default})" if field.default is not None else " (required)" if field.required else ""
    return (field.description + note).replace("%", "%%")


def _converter(field: StepField) -> Callable[[str], Value]:
    """Return a function from the flag's text to its value; its errors name the value and what is expected."""
    if field.kind != "parameter":
        return _folder
    return lambda text: _value(field, text)


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a folder, got an empty name")
    return Path(text)


def _value(field: StepField, text: str) -> Value:
    try:
        return value_of_text(field, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
