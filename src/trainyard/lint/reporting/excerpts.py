"""The source line of a finding, and the carets beneath what it is about."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.reporting.places import printable
from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import source_lines

# A caret line is for looking at, not for scrolling sideways.
_WIDEST = 160
# A source is read to be shown, never more of it than the linter itself reads.
_MOST_BYTES = 4 * 1024 * 1024


class Excerpt(NamedTuple):
    """A source line as it is printed, and the line of carets that goes beneath it."""

    source: str
    carets: str


class Sources:
    """The lines of the files that findings lie in, each file read once."""

    def __init__(self) -> None:
        self._lines: dict[Path, list[str]] = {}

    def excerpt(self, span: Span) -> Excerpt | None:
        """The line that a span begins in with what it covers of it underlined; None when there is no such line."""
        line = self._line(span)
        if line is None or not line.strip():
            return None
        start = min(span.column - 1, len(line))
        end = span.end_column - 1 if span.end_line == span.line else len(line.rstrip())
        end = max(start + 1, min(end, len(line)))
        if len(line) > _WIDEST:
            # Keep what is underlined in sight.
            cut = max(0, start - _WIDEST // 2)
            line = line[cut : cut + _WIDEST]
            start, end = start - cut, min(end - cut, len(line))
        carets = "^" * max(1, _width(line[start:end]))
        return Excerpt(printable(line.rstrip()), _blanks(line[:start]) + carets)

    def _line(self, span: Span) -> str | None:
        if span.file not in self._lines:
            self._lines[span.file] = _lines_of(span.file)
        lines = self._lines[span.file]
        return lines[span.line - 1] if span.line <= len(lines) else None


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
