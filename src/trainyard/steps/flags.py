"""From a step's dataclass to its command line: one flag per field, checked before anything heavy is imported."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from trainyard.steps.step_fields import StepField, step_fields

Config = TypeVar("Config")

_TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
_FALSE_WORDS = frozenset({"false", "no", "off", "0"})


class _StepParser(argparse.ArgumentParser):
    """Says what was wrong and how to see what is right; exit code 2, as for every wrong use."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n  {self.prog} --help shows every flag.\n")


def parse_flags(config_class: type[Config], program: str, arguments: list[str] | None = None) -> Config:
    """Read the command line into a config.

    `program` is the module to run, as in `trainyard.steps.train_ddp`. Abbreviated flags are refused, so that a
    new flag never changes what an old command means. Exits 2 with one clear line on a wrong or missing flag.
    """
    parser = build_parser(config_class, program)
    values = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    return config_class(**vars(values))


def build_parser(config_class: type, program: str) -> argparse.ArgumentParser:
    """The argument parser of a step: help text from the class's and the fields' own documentation."""
    fields = step_fields(config_class)
    example = " ".join(f"{field.flag} {_example_value(field)}" for field in fields if field.required)
    parser = _StepParser(
        prog=f"python -m {program}",
        description=config_class.__doc__,
        epilog=f"example: python -m {program} {example}",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for field in fields:
        options: dict[str, Any] = {
            "dest": field.name,
            "help": field.description.replace("%", "%%"),
            "required": field.required,
            "default": field.default if not field.required else argparse.SUPPRESS,
            "type": _converter(field),
            "metavar": field.choices and "{" + ",".join(field.choices) + "}" or _example_value(field),
        }
        if field.type == "boolean":
            options |= {"nargs": "?", "const": True}
        if field.default is None:
            options["default"] = argparse.SUPPRESS if field.required else None
        parser.add_argument(field.flag, **options)
    return parser


def _example_value(field: StepField) -> str:
    if field.kind != "parameter":
        return "FOLDER"
    return {"integer": "N", "number": "X", "boolean": "true|false", "string": "TEXT"}[field.type]


def _converter(field: StepField) -> Any:
    """A function from the flag's text to its value; its errors name the value and what would be right."""

    def convert(text: str) -> Any:
        if field.kind != "parameter":
            return Path(text)
        if field.type == "boolean":
            return _boolean(text)
        if field.type == "string":
            if field.choices and text not in field.choices:
                raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(field.choices)}")
            return text
        try:
            number = int(text) if field.type == "integer" else float(text)
        except ValueError:
            wanted = "a whole number" if field.type == "integer" else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None
        if number != number:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number")
        if field.minimum is not None and number < field.minimum:
            raise argparse.ArgumentTypeError(f"{text} is below the least allowed, {field.minimum:g}")
        if field.maximum is not None and number > field.maximum:
            raise argparse.ArgumentTypeError(f"{text} is above the most allowed, {field.maximum:g}")
        return number

    return convert


def _boolean(text: str) -> bool:
    """Azure ML sends Python's `True` and `False`; people write true, yes, 1."""
    if text.lower() in _TRUE_WORDS:
        return True
    if text.lower() in _FALSE_WORDS:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
