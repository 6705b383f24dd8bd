"""The source line of a finding, and the carets beneath what it is about."""

from __future__ import annotations

import unicodedata
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.reporting.places import printable
from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import source_lines

# A caret line is for looking at, not for scrolling sideways.
WIDEST = 160
_NARROWEST = 20
_CUT = "…"
# A source is read to be shown, never more of it than the linter itself reads.
_MOST_BYTES = 4 * 1024 * 1024


class Excerpt(NamedTuple):
    """A source line as it is printed, in three parts, and the line of carets that goes beneath it."""

    before: str
    culprit: str
    after: str
    carets: str


class Sources:
    """The lines of the files that findings lie in, each file read once."""

    def __init__(self) -> None:
        self._lines: dict[Path, list[str]] = {}

    def excerpt(self, span: Span, widest: int = WIDEST) -> Excerpt | None:
        """The line that a span begins in with what it covers of it underlined; None when there is no such line.

        Of a line that takes more than `widest` cells, what is around the span is shown.
        """
        line = self.line(span.file, span.line)
        if line is None or not line.strip():
            return None
        line = line.rstrip()
        start = min(span.column - 1, len(line))
        end = span.end_column - 1 if span.end_line == span.line else len(line)
        end = max(start + 1, min(end, len(line)))
        before, culprit, after = _within(widest, line[:start], line[start:end], line[end:])
        carets = _blanks(before) + "^" * max(1, _width(culprit))
        return Excerpt(printable(before), printable(culprit), printable(after), carets)

    def line(self, file: Path, number: int) -> str | None:
        """A line of a file, counted from 1, without its end; None where there is none, or no text."""
        if file not in self._lines:
            self._lines[file] = _lines_of(file)
        lines = self._lines[file]
        return lines[number - 1] if number <= len(lines) else None


def _within(widest: int, before: str, culprit: str, after: str) -> tuple[str, str, str]:
    """Three parts of a line, cut (with `…`) where the line is too wide: behind first, then before, then the middle."""
    widest = max(widest, _NARROWEST)
    # Of a line of megabytes no more is measured than could be shown.
    most = 2 * widest
    before, culprit, after = before[-most:], culprit[:most], after[:most]
    if _width(before + culprit + after) <= widest:
        return before, culprit, after
    culprit = _fitting(culprit, widest - bool(before) - bool(after))
    room = widest - _width(culprit)
    before = _fitting(before[::-1], max(room // 2, room - _width(after)))[::-1]
    return before, culprit, _fitting(after, room - _width(before))


def _fitting(text: str, cells: int) -> str:
    """The beginning of a text that fits into so many cells, with `…` at its end where it is cut."""
    if _width(text) <= cells:
        return text
    if text.isascii() and text.isprintable():
        return text[: cells - 1] + _CUT
    taken = accumulate(_cells(character) for character in text)
    return text[: sum(total <= cells - 1 for total in taken)] + _CUT


def _lines_of(file: Path) -> list[str]:
    try:
        if not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return []
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError):
        return []
    return [] if "\0" in text else source_lines(text)


def _blanks(text: str) -> str:
    """As wide as a text; tabs stay tabs, so that the carets stand where the line does."""
    return "".join("\t" if character == "\t" else " " * _width(character) for character in text)


def _width(text: str) -> int:
    """How many cells of a terminal a text takes: two for the wide characters of East Asia, none for accents."""
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if character == "\t":
        return 1
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else len(printable(character))
