"""Tables that ship with Trainyard: each row of a CSV file as a record, read by its fields' types."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

Row = TypeVar("Row")


def rows_of(kind: type[Row], file: Path) -> tuple[Row, ...]:
    """Return the rows of a file in its order; columns that `kind` has no field for are notes.

    An empty cell of a type that may be None is None.
    """
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}
    with file.open(encoding="utf-8", newline="") as stream:
        return tuple(
            kind(**{name: readers[name](cell) for name, cell in row.items() if name in readers})
            for row in csv.DictReader(stream)
        )


def _reader(kind: Any) -> Callable[[str], Any]:
    if isinstance(kind, UnionType):
        read = _READERS[get_args(kind)[0]]
        return lambda cell: read(cell) if cell else None
    return _READERS[get_origin(kind) or kind]


def _number(cell: str) -> float:
    """Return a number; whole numbers stay integers, so that 8 is not printed as 8.0."""
    number = float(cell)
    return int(number) if number.is_integer() else number


_READERS: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: _number,
    bool: lambda cell: cell in ("yes", "true"),
    Fraction: Fraction,
    tuple: lambda cell: tuple(cell.split()),
    # `A=1;B=2`; a remark without an equals sign is skipped.
    Mapping: lambda cell: dict(part.split("=", 1) for part in cell.split(";") if "=" in part),
}
