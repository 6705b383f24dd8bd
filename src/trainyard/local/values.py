"""Literals and their declared types: what a port accepts, how text becomes a value, and a value text."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainyard.spec.model import Port, Value

ParameterValue = str | int | float | bool


def checked_value(port: Port, data: object) -> ParameterValue:
    """The literal as the port's type has it. Raises `ValueError` saying what is wrong with it, without naming the port.

    Azure ML's client enforces neither type nor range (azure-ai-ml 1.35.2), so a local run is where they are first met.
    """
    typed = _TYPED[port.type]
    value = typed(data)
    if port.choices is not None:
        allowed = [typed(choice.data) for choice in port.choices]
        if value not in allowed:
            raise ValueError(f"{data!r} is not one of {', '.join(map(str, allowed))}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # A bound may be a text: to YAML 1.1 that is what 1e-4 is.
        if port.minimum is not None and value < _number(port.minimum.data):
            raise ValueError(f"{value} is below the least allowed, {port.minimum.data}")
        if port.maximum is not None and value > _number(port.maximum.data):
            raise ValueError(f"{value} is above the most allowed, {port.maximum.data}")
    return value


def written(value: Value) -> object:
    """What a job's input is set to: the value itself, or the `path` or `value` of a mapping."""
    return value.data.get("path", value.data.get("value")) if isinstance(value.data, dict) else value.data


def as_text(value: ParameterValue) -> str:
    """How a literal stands in a command: its `str()`, as Azure ML's client sends it (true → True, 0.00001 → 1e-05)."""
    return str(value)


def _string(data: object) -> str:
    if isinstance(data, (str, int, float, bool)):
        return str(data)
    raise ValueError(f"{data!r} is not a text")


def _integer(data: object) -> int:
    if isinstance(data, int) and not isinstance(data, bool):
        return data
    if isinstance(data, str):
        try:
            return int(data)
        except ValueError:
            pass
    raise ValueError(f"{data!r} is not a whole number")


def _number(data: object) -> int | float:
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        return data
    if isinstance(data, str):
        for read in (int, float):
            try:
                number = read(data)
            except ValueError:
                continue
            if not math.isnan(number):
                return number
    raise ValueError(f"{data!r} is not a number")


def _boolean(data: object) -> bool:
    if isinstance(data, bool):
        return data
    if isinstance(data, str) and data.lower() in ("true", "false"):
        return data.lower() == "true"
    raise ValueError(f"{data!r} is neither true nor false")


_TYPED: dict[str, Callable[[object], ParameterValue]] = {
    "string": _string,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
}
