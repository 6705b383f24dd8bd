"""Findings as people read them: the place, the source line with the culprit underlined, the hint."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from trainyard.project_files import read_text
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Severity, Span
from trainyard.spec.secrets import HIDDEN, SECRET_RULE, redacted
from trainyard.spec.set_arguments import COMMAND_LINE
from trainyard.spec.yaml_parsing import source_lines

_RESET, _BOLD, _BLUE, _GREEN = "\x1b[0m", "\x1b[1m", "\x1b[34m", "\x1b[32m"
_COLOUR: dict[Severity, str] = {"error": "\x1b[31m", "warning": "\x1b[33m", "info": "\x1b[36m"}
# Wider lines would have to be scrolled sideways.
WIDEST = 160
_NARROWEST = 20
# So many lines of repeated findings are named; the other formats have them all.
_MOST_LINES = 12
_CUT = "…"
# Larger files are not shown; the linter does not read them either.
_MOST_BYTES = 4 * 1024 * 1024
# Control characters, and those that reorder what follows (bidirectional overrides and isolates).
_UNPRINTABLE = regex("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def as_text(
    diagnostics: Sequence[Diagnostic],
    *,
    colour: bool,
    relative_to: Path,
    widest: int = WIDEST,
    texts: Mapping[Path, str] = MappingProxyType({}),
) -> str:
    """Return findings with place, message, the source line with the culprit underlined, the hint, and related places.

    File names are relative to a folder where that is shorter. `colour` adds ANSI sequences; `widest` is how many cells
    a source line may take. Warnings and notes of one rule in one file are shown once, with the lines of the others;
    errors are all shown, since each has to be fixed.
    """
    sources = Sources(texts)
    sources.hide_secrets(diagnostics)
    return "\n\n".join(
        _one(first, others, sources, colour, relative_to, widest) for first, others in _folded(diagnostics)
    )


def _folded(diagnostics: Sequence[Diagnostic]) -> Iterator[tuple[Diagnostic, list[Diagnostic]]]:
    """The findings to show, each with the later ones of its rule in its file that it stands for."""
    groups: dict[tuple[object, ...], list[Diagnostic]] = {}
    for number, diagnostic in enumerate(diagnostics):
        key = (diagnostic.span.file, diagnostic.rule, number if diagnostic.severity == "error" else diagnostic.severity)
        groups.setdefault(key, []).append(diagnostic)
    return ((first, others) for first, *others in groups.values())


def _lines_of_others(others: Sequence[Diagnostic]) -> str:
    """Say how often a finding repeats, and where: `and 3 more of these, in lines 4, 9 and 12`."""
    lines = [str(line) for line in dict.fromkeys(other.span.line for other in others)]
    named = lines[:_MOST_LINES] if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], "…"]
    listed = " and ".join([", ".join(named[:-1]), named[-1]] if len(lines) == len(named) > 1 else [", ".join(named)])
    return f"and {len(others)} more of these, in line{'s' if len(lines) > 1 else ''} {listed}"


def _one(
    diagnostic: Diagnostic,
    others: Sequence[Diagnostic],
    sources: Sources,
    colour: bool,
    relative_to: Path,
    widest: int,
) -> str:
    def paint(text: str, *codes: str) -> str:
        return f"{''.join(codes)}{text}{_RESET}" if colour and text else text

    of_severity = _COLOUR[diagnostic.severity]
    place = paint(_place(diagnostic.span, relative_to), _BOLD)
    label = paint(f"{diagnostic.severity}[{diagnostic.rule}]", _BOLD, of_severity)
    lines = [f"{place}: {label} {printable(diagnostic.message)}"]
    gutter = f"{diagnostic.span.line} |"
    excerpt = sources.excerpt(diagnostic.span, widest - len(gutter) - 1)
    if excerpt is not None:
        source = f"{excerpt.before}{paint(excerpt.culprit, _BOLD, of_severity)}{excerpt.after}".rstrip()
        lines.append(f"{paint(gutter, _BLUE)} {source}")
        lines.append(f"{paint('|'.rjust(len(gutter)), _BLUE)} {paint(excerpt.carets, of_severity)}")
    if diagnostic.hint:
        lines.append(f"  {paint('hint:', _BOLD, _GREEN)} {printable(diagnostic.hint)}")
    for related in diagnostic.related:
        lines.append(f"  {paint(_place(related.span, relative_to), _BLUE)}: {printable(related.message)}")
    if others:
        lines.append(f"  {_lines_of_others(others)}")
    return "\n".join(lines)


def _place(span: Span, relative_to: Path) -> str:
    if span.file == COMMAND_LINE:
        return str(span.file)
    return f"{printable(file_name(span.file, relative_to))}:{span.line}:{span.column}"


class Excerpt(NamedTuple):
    """A source line as it is printed, in three parts, and the carets below it."""

    before: str
    culprit: str
    after: str
    carets: str


class Sources:
    """The lines of the files with findings; each file is read once. `texts` are in place of those on disk."""

    def __init__(self, texts: Mapping[Path, str] = MappingProxyType({})) -> None:
        self._lines: dict[Path, list[str]] = {file: source_lines(text) for file, text in texts.items()}

    def excerpt(self, span: Span, widest: int = WIDEST) -> Excerpt | None:
        """Return the first line of a span, with the span underlined; None if there is no such line.

        A line of more than `widest` cells is cut to what surrounds the span.
        """
        line = self.line(span.file, span.line)
        if line is None or not line.strip():
            return None
        line = line.rstrip()
        start = min(span.column - 1, len(line))
        end = span.end_column - 1 if span.end_line == span.line else len(line)
        end = max(start + 1, min(end, len(line)))
        before, culprit, after = _within(widest, line[:start], line[start:end], line[end:])
        # Tabs remain, so that the carets line up with the source line.
        blanks = "".join("\t" if character == "\t" else " " * _width(character) for character in before)
        carets = blanks + "^" * max(1, _width(culprit))
        return Excerpt(printable(before), printable(culprit), printable(after), carets)

    def hide_secrets(self, diagnostics: Sequence[Diagnostic]) -> None:
        """Put `***` in place of the secrets in the files of findings: those of the known forms, and those found."""
        for file in {each.span.file for each in diagnostics if self.line(each.span.file, 1) is not None}:
            self._lines[file] = redacted("\n".join(self._lines[file]), keeps_width=True).split("\n")
        for span in (each.span for each in diagnostics if each.rule == SECRET_RULE):
            if line := self.line(span.file, span.line):
                end = span.end_column - 1 if span.end_line == span.line else len(line)
                hidden = HIDDEN.ljust(end - span.column + 1)
                self._lines[span.file][span.line - 1] = line[: span.column - 1] + hidden + line[end:]

    def line(self, file: Path, number: int) -> str | None:
        """Return a line of a file, counted from 1, without its line end; None if there is none."""
        if file not in self._lines:
            self._lines[file] = _lines_of(file)
        lines = self._lines[file]
        return lines[number - 1] if number <= len(lines) else None


def _within(widest: int, before: str, culprit: str, after: str) -> tuple[str, str, str]:
    """Cut a line that is too wide (with `…`): first after the culprit, then before it, then the culprit itself."""
    widest = max(widest, _NARROWEST)
    # Of a line of megabytes, measure no more than could be shown.
    most = 2 * widest
    before, culprit, after = before[-most:], culprit[:most], after[:most]
    if _width(before + culprit + after) <= widest:
        return before, culprit, after
    culprit = _fitting(culprit, widest - bool(before) - bool(after))
    room = widest - _width(culprit)
    before = _fitting(before[::-1], max(room // 2, room - _width(after)))[::-1]
    return before, culprit, _fitting(after, room - _width(before))


def _fitting(text: str, cells: int) -> str:
    """Return as much of a string as fits into a number of cells, with `…` at the end if it is cut."""
    if _width(text) <= cells:
        return text
    if text.isascii() and text.isprintable():
        return text[: cells - 1] + _CUT
    taken = accumulate(_cells(character) for character in text)
    return text[: sum(total <= cells - 1 for total in taken)] + _CUT


def _lines_of(file: Path) -> list[str]:
    try:
        text = read_text(file, encoding="utf-8-sig", limit_bytes=_MOST_BYTES)
    except (OSError, ValueError):
        return []
    return [] if "\0" in text else source_lines(text)


def _width(text: str) -> int:
    """Return the width of a string in terminal cells: two for wide East Asian characters, none for accents."""
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    if character == "\t":
        return 1
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else len(printable(character))


def file_name(file: Path, relative_to: Path) -> str:
    """Return a file's name relative to a folder; the absolute name if that is more than two levels up."""
    try:
        relative = os.path.relpath(file, relative_to)
    except ValueError:
        return str(file)
    return str(file) if relative.startswith(os.path.join("..", "..", "..")) else relative


def relative_name(file: Path, relative_to: Path) -> str:
    """Return a file's name relative to a folder, however far away, with `/`: programs join it with that folder."""
    return Path(os.path.relpath(file, relative_to)).as_posix()


def printable(text: str) -> str:
    """Return a string with control characters escaped, such as `\\x1b`. Tabs remain."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
