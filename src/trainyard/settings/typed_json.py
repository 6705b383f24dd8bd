"""Dataclasses from JSON that anybody may have written: each value has the type that its field is annotated with."""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

_LARGEST_INTEGER = 2**53
_DEEPEST = 20
_CALLED = {str: "a string", int: "an integer", bool: "true or false", float: "a finite number"}

Record = TypeVar("Record")


def read_dataclass(kind: type[Record], value: object, where: str) -> Record:
    """Return a dataclass of a JSON object, with the dataclasses, lists and mappings within. ValueError says what is
    wrong, and `where`.

    A field that is missing or null takes its default. One that is not compared is not in the JSON.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {reprlib.repr(value)}; expected an object")
    known = _fields_of(typing.cast("Any", kind))
    missing = [repr(name) for name, (_, is_required) in known.items() if is_required and value.get(name) is None]
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    given = {name: hint for name, (hint, _) in known.items() if value.get(name) is not None}
    return kind(**{name: _read(hint, value[name], f"{where}.{name}") for name, hint in given.items()})


@functools.cache
def _fields_of(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    hints = typing.get_type_hints(kind)
    missing = dataclasses.MISSING
    return {
        field.name: (hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
        if field.compare
    }


def _read(hint: Any, value: object, where: str) -> Any:
    if hint in _CALLED:
        return _read_scalar(hint, value, where)
    if dataclasses.is_dataclass(hint):
        return read_dataclass(typing.cast("type", hint), value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return _read(arguments[0], value, where)  # of a type or None
    if hint is Any:
        _require_plain(value, where, _DEEPEST)
        return value
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{where} is {reprlib.repr(value)}; expected one of {', '.join(arguments)}")
        return value
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is {reprlib.repr(value)}; expected an object")
        for key in value:
            _require_plain(key, where, 0)
        return {key: _read(arguments[1], each, f"{where}.{key}") for key, each in value.items()}
    assert origin in (list, tuple)
    if not isinstance(value, list):
        raise ValueError(f"{where} is {reprlib.repr(value)}; expected a list")
    return origin(_read(arguments[0], each, f"{where}[{number}]") for number, each in enumerate(value))


def _read_scalar(kind: type, value: object, where: str) -> Any:
    _require_plain(value, where, 0)
    accepted = (int, float) if kind is float else kind
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool) or not is_finite:
        raise ValueError(f"{where} is {reprlib.repr(value)}; expected {_CALLED[kind]}")
    return value


def _require_plain(value: object, where: str, depth: int) -> None:
    """Raise ValueError for what could not be shown: halves of characters, endless numbers, deep nesting."""
    if isinstance(value, str) and not value.isprintable():
        if "\0" in value:
            raise ValueError(f"{where} contains a null character")
        value.encode()
    elif isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        raise ValueError(f"{where}: the number is too large")
    elif isinstance(value, (dict, list)):
        if depth == 0:
            raise ValueError(f"{where} is nested too deeply")
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            _require_plain(key, where, 0)
            _require_plain(each, where, depth - 1)
