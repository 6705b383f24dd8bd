"""What commands print: tables whose columns are aligned, facts behind their labels, JSON, and short paths.

rich would do the same; importing it takes a quarter of the time of `trainyard plan`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any


def table(rows: Sequence[Sequence[str]], *, indent: int = 0, right_aligned: Collection[int] = ()) -> list[str]:
    """Return the lines of a table, whose header is its first row; the numbers of columns count from 0."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if number in right_aligned else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return " " * indent + "  ".join(cells).rstrip()

    return [line(row) for row in rows]


def facts(pairs: Iterable[tuple[str, str]], label_width: int, *, indent: int = 2) -> list[str]:
    """Return a line for each label and its text."""
    return [f"{' ' * indent}{label:<{label_width}}{text}" for label, text in pairs]


def json_text(document: Any) -> str:
    """Return a document as indented JSON; what JSON has no type for is written as its text."""
    return json.dumps(document, indent=2, ensure_ascii=False, default=str)


def short(path: Path) -> Path:
    """Return the path relative to the working directory if it is below it, else unchanged."""
    absolute = Path(os.path.abspath(path))
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else path
