"""Markdown for pull requests: what files contain is text in it, and never a link, a mention, an image or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"[\\`*\[\]<>~!#]|(?<!\w)_|_(?!\w)|^[-+=](?![\w.])")
# GitHub makes links of these without any marks: a character of no width behind the first keeps it from that.
_LINKED = re.compile(r"@(?=\w)|#(?=\d)|(?<=\w):(?=//)|www(?=\.)", re.IGNORECASE)
_NO_WIDTH = "\u200b"


class Code(str):
    """Markdown of a code span."""

    __slots__ = ()


def code(text: str) -> Code:
    """Return a string as a code span, fenced by more backticks than any run in it has."""
    text = " ".join(text.split())
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return Code(f"{fence}{space}{text}{space}{fence}")


def prose(text: str) -> str:
    """Return a string as it is read; what is between two backticks in it is code. Code spans stay as they are."""
    if isinstance(text, Code):
        return text
    parts = " ".join(text.split("\n")).split("`")
    if len(parts) % 2 == 0:  # the last backtick closes nothing
        parts[-2:] = [f"{parts[-2]}'{parts[-1]}"]
    return "".join(code(part) if place % 2 and part.strip() else _escaped(part) for place, part in enumerate(parts))


def _escaped(text: str) -> str:
    text = _SPECIAL.sub(lambda found: f"\\{found[0]}", text)
    return _LINKED.sub(lambda found: f"{found[0]}{_NO_WIDTH}", text)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table's lines."""
    return [row(header), "| " + " | ".join(["---"] * len(header)) + " |", *map(row, rows)]


def findings(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a list of what was found, each with the name of its job."""
    return [f"- **{prose(job)}**: {prose(finding)}" for job, finding in pairs]


def row(cells: Sequence[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(prose(cell).replace('|', chr(92) + '|') for cell in cells)} |"
