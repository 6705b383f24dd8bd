"""What commands print: aligned tables, facts behind their labels, JSON, short paths, and the ends of logs.

rich would do the same; importing it takes a quarter of the time of `trainyard plan`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
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


def shortened(name: str, width: int) -> str:
    """Return a name of at most so many characters: the end of a dotted one distinguishes it as the beginning does."""
    half = (width - 1) // 2
    return name if len(name) <= width else f"{name[:half]}…{name[-half:]}"


def json_text(document: Any) -> str:
    """Return a document as indented JSON; what JSON has no type for is written as its text."""
    return json.dumps(document, indent=2, ensure_ascii=False, default=str)


def short(path: Path) -> Path:
    """Return the path relative to the working directory if it is below it, else unchanged."""
    absolute = Path(os.path.abspath(path))
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else path


_TAIL_BYTES = 1 << 16
# Escape sequences of terminals, and control characters other than the line feed and tab.
_NOT_TEXT = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def plain_text(text: str) -> str:
    """Return text without escape sequences and control characters; of a progress bar's line, its last state."""
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return "\n".join(_NOT_TEXT.sub("", line) for line in lines)


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines that are not blank, as plain text; none of a log that cannot be read."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    # From the end, because most lines of a long log are not wanted.
    found = (stripped for line in reversed(text.split("\n")) if (stripped := plain_text(line).rstrip()))
    return list(islice(found, count))[::-1]
