"""Diagnostics for people (source line, caret, hint) and for programs (JSON)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span
from trainyard.spec.documents import source_lines

_RESET, _BOLD, _BLUE = "\x1b[0m", "\x1b[1m", "\x1b[34m"
_COLOUR: dict[Severity, str] = {"error": "\x1b[31m", "warning": "\x1b[33m", "info": "\x1b[36m"}
# A caret line is for looking at, not for scrolling sideways.
_WIDEST_EXCERPT = 160


def as_text(diagnostics: Sequence[Diagnostic], *, colour: bool, relative_to: Path) -> str:
    """Diagnostics as a person reads them: place, message, the source line with the culprit underlined, the hint.

    File names are written relative to a folder where that is shorter. `colour` adds ANSI sequences.
    """
    sources = _Sources()
    return "\n".join(_one_as_text(d, sources, colour, relative_to) for d in diagnostics)


def as_json(diagnostics: Iterable[Diagnostic], *, relative_to: Path) -> str:
    """Diagnostics as a JSON list; lines and columns count from 1, ends are exclusive in their column."""
    return json.dumps([_one_as_data(d, relative_to) for d in diagnostics], indent=2, ensure_ascii=False)


class _Sources:
    """The lines of the files that diagnostics lie in, each file read once."""

    def __init__(self) -> None:
        self._lines: dict[Path, list[str]] = {}

    def line(self, span: Span) -> str | None:
        """The line that a span begins in; None when the file cannot be read, or has no such line."""
        if span.file not in self._lines:
            self._lines[span.file] = _lines_of(span.file)
        lines = self._lines[span.file]
        return lines[span.line - 1] if span.line <= len(lines) else None


def _lines_of(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError):
        return []
    return [] if "\0" in text else source_lines(text)


def _one_as_text(diagnostic: Diagnostic, sources: _Sources, colour: bool, relative_to: Path) -> str:
    def paint(text: str, *codes: str) -> str:
        return f"{''.join(codes)}{text}{_RESET}" if colour else text

    severity_colour = _COLOUR[diagnostic.severity]
    place = paint(_place(diagnostic.span, relative_to), _BOLD)
    label = paint(f"{diagnostic.severity}[{diagnostic.rule}]", _BOLD, severity_colour)
    lines = [f"{place}: {label} {diagnostic.message}"]
    excerpt = _excerpt(diagnostic.span, sources)
    if excerpt is not None:
        source, caret = excerpt
        gutter = len(str(diagnostic.span.line))
        lines.append(f"{paint(f'{diagnostic.span.line} |', _BLUE)} {source}")
        lines.append(f"{paint(' ' * gutter + ' |', _BLUE)} {paint(caret, severity_colour)}")
    if diagnostic.hint:
        lines.append(f"  hint: {diagnostic.hint}")
    lines.extend(f"  {_related_as_text(related, relative_to)}" for related in diagnostic.related)
    return "\n".join(lines)


def _related_as_text(related: Related, relative_to: Path) -> str:
    return f"{_place(related.span, relative_to)}: {related.message}"


def _excerpt(span: Span, sources: _Sources) -> tuple[str, str] | None:
    """The source line, and a line of carets beneath what the span covers of it."""
    line = sources.line(span)
    if line is None or not line.strip():
        return None
    start = min(span.column - 1, len(line))
    end = span.end_column - 1 if span.end_line == span.line else len(line.rstrip())
    end = max(start + 1, min(end, len(line)))
    if len(line) > _WIDEST_EXCERPT:
        # Keep what is underlined in sight.
        cut = max(0, start - _WIDEST_EXCERPT // 2)
        line = line[cut : cut + _WIDEST_EXCERPT]
        start, end = start - cut, min(end - cut, len(line))
    # Tabs stay tabs, so that the carets stand where the line does.
    blanks = "".join(character if character == "\t" else " " for character in line[:start])
    return line.rstrip(), blanks + "^" * (end - start)


def _place(span: Span, relative_to: Path) -> str:
    return f"{_file_name(span.file, relative_to)}:{span.line}:{span.column}"


def _file_name(file: Path, relative_to: Path) -> str:
    """A file's name seen from a folder; with more than two steps upwards, the full name is clearer."""
    try:
        relative = os.path.relpath(file, relative_to)
    except ValueError:
        return str(file)
    return str(file) if relative.startswith(os.path.join("..", "..", "..")) else relative


def _one_as_data(diagnostic: Diagnostic, relative_to: Path) -> dict[str, object]:
    span = diagnostic.span
    return {
        "file": _file_name(span.file, relative_to),
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
        "rule": diagnostic.rule,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "hint": diagnostic.hint,
        "related": [
            {
                "file": _file_name(related.span.file, relative_to),
                "line": related.span.line,
                "column": related.span.column,
                "message": related.message,
            }
            for related in diagnostic.related
        ],
    }
