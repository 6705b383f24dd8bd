"""From a step's dataclass to its command line: one flag per field, checked before anything heavy is imported."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from trainyard.foundation.step_fields import StepField, step_fields

Config = TypeVar("Config")
Value = str | int | float | bool | Path

_TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
_FALSE_WORDS = frozenset({"false", "no", "off", "0"})
_VALUE_NAMES = {"integer": "N", "number": "X", "boolean": "true|false", "string": "TEXT"}


class _StepParser(argparse.ArgumentParser):
    """Says what was wrong and how to see what is right; exit code 2, as for every wrong use."""

    def error(self, message: str) -> NoReturn:
        program = self.prog.removeprefix("python -m ")
        self.exit(2, f"{program}: error: {message}\n  {self.prog} --help shows every flag.\n")


def parse_flags(config_class: type[Config], program: str, arguments: Sequence[str] | None = None) -> Config:
    """Read the command line into a config.

    `program` is the module to run, as in `trainyard.steps.train_ddp`. Abbreviated flags are refused, so that a
    new flag never changes what an old command means. Exits 2 with one clear line on a wrong or missing flag.
    """
    parser = build_parser(config_class, program)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _refuse_unknown_flags(parser, arguments)
    return config_class(**vars(parser.parse_args(arguments)))


def build_parser(config_class: type, program: str) -> argparse.ArgumentParser:
    """The argument parser of a step: help text from the class's and the fields' own documentation."""
    fields = step_fields(config_class)
    example = " ".join(f"{field.flag} {_value_name(field)}" for field in fields if field.required)
    parser = _StepParser(
        prog=f"python -m {program}",
        description=config_class.__doc__,
        epilog=f"example: python -m {program} {example}",
        allow_abbrev=False,
    )
    for field in fields:
        options: dict[str, Any] = {
            "dest": field.name,
            "help": _help(field),
            "required": field.required,
            "default": None if field.required else field.default,
            "type": _converter(field),
            "metavar": _value_name(field),
        }
        if field.type == "boolean":
            options |= {"nargs": "?", "const": True}
        parser.add_argument(field.flag, **options)
    return parser


def _refuse_unknown_flags(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Name what was meant, before argparse complains of the required flag that a misspelt one left out."""
    known = [flag for action in parser._actions for flag in action.option_strings]
    for argument in arguments:
        if argument == "--":
            return
        flag = argument.partition("=")[0]
        if flag.startswith("--") and flag not in known:
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
    """A function from the flag's text to its value; its errors name the value and what would be right."""
    if field.kind != "parameter":
        return _folder
    if field.type == "boolean":
        return _boolean
    if field.type == "string":
        return lambda text: _choice(text, field)
    return lambda text: _number(text, field)


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name of the folder is empty")
    return Path(text)


def _boolean(text: str) -> bool:
    """Azure ML sends Python's `True` and `False`; people write true, yes, 1."""
    if text.lower() in _TRUE_WORDS:
        return True
    if text.lower() in _FALSE_WORDS:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")


def _choice(text: str, field: StepField) -> str:
    if field.choices and text not in field.choices:
        close = difflib.get_close_matches(text, field.choices, n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(field.choices)}{meant}")
    return text


def _number(text: str, field: StepField) -> int | float:
    try:
        number = int(text) if field.type == "integer" else float(text)
    except ValueError:
        wanted = "a whole number" if field.type == "integer" else "a number"
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    if field.minimum is not None and number < field.minimum:
        raise argparse.ArgumentTypeError(f"{text} is below the least allowed, {field.minimum:.10g}")
    if field.maximum is not None and number > field.maximum:
        raise argparse.ArgumentTypeError(f"{text} is above the most allowed, {field.maximum:.10g}")
    return number
