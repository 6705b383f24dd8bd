"""Source maps: which template line, and which lines of a profile, a rendered line comes from.

The text is rendered a second time, with marks in the template's own text and around values that know where they were
written; the marks are read off line by line. The text that is written never holds marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.ext import Extension
from jinja2.lexer import Token

from trainyard.author.project import Project
from trainyard.author.templates import TemplateSet
from trainyard.author.values import origin_of
from trainyard.spec.diagnostic import Span

# Code points that Unicode leaves to private use, so no template holds them: begin of a mark, and its end.
_BEGIN, _END = "\ue000", "\ue001"
_MARK = re.compile(f"{_BEGIN}([0-9]+){_END}")


@dataclass(frozen=True)
class LineSource:
    """The sources of one rendered line: a template's line, and the profile lines of the values in it."""

    template: Span | None
    profile: tuple[Span, ...] = ()


@dataclass(frozen=True)
class SourceMap:
    """The sources of the lines of a rendered file; `first_line` is the number of the line of `lines[0]`."""

    lines: tuple[LineSource, ...]
    first_line: int

    def source_of(self, line: int) -> LineSource | None:
        """Return the source of a line, counted from 1; None for the header and beyond the end."""
        index = line - self.first_line
        return self.lines[index] if 0 <= index < len(self.lines) else None


def map_sources(project: Project, content: str, render_with: Callable[[Any], str]) -> tuple[LineSource, ...]:
    """Return the source of each line of a content; `render_with` renders it again with the given templates."""
    places: list[Span] = []
    templates = _marking_templates(project, places)
    marked = render_with(templates)
    # If a template inspects its own text, marks may change the result: then there is no map.
    return tuple(_read_marks(marked, places)) if _MARK.sub("", marked) == content else ()


def _marking_templates(project: Project, places: list[Span]) -> Any:
    """Return the project's templates, rendering with marks whose numbers are indices into `places`."""

    def mark(span: Span) -> str:
        places.append(span)
        return f"{_BEGIN}{len(places) - 1}{_END}"

    class MarkLines(Extension):
        """Marks the beginning of each line of a template's own text, and of each `{{ … }}`."""

        def filter_stream(self, stream: Any) -> Iterator[Token]:
            file = project.templates / (stream.name or "")
            for token in stream:
                if token.type == "variable_begin":
                    yield Token(token.lineno, "data", mark(Span(file, token.lineno, 1, token.lineno, 1)))
                if token.type == "data":
                    yield Token(token.lineno, "data", "".join(_marked_lines(file, token)))
                else:
                    yield token

    def _marked_lines(file: Path, token: Any) -> Iterator[str]:
        for offset, line in enumerate(token.value.splitlines(keepends=True)):
            number = token.lineno + offset
            yield mark(Span(file, number, 1, number, 1)) + line

    def mark_value(value: Any) -> Any:
        origin = origin_of(value)
        return value if origin is None else f"{mark(origin)}{value}"

    return TemplateSet(project, extensions=[MarkLines], finalize=mark_value)


def _read_marks(marked: str, places: Sequence[Span]) -> Iterator[LineSource]:
    """Yield the source of each line of a marked text. A line without marks has the source of the line above."""
    template: Span | None = None
    for line in marked.split("\n"):
        own: Span | None = None
        profile: list[Span] = []
        for found in _MARK.finditer(line):
            span = places[int(found.group(1))]
            if span.file.suffix == ".j2":
                template = span
                if own is None and _MARK.sub("", line[found.end() :].split(_BEGIN, 1)[0]).strip():
                    own = span
            elif span not in profile:
                profile.append(span)
        yield LineSource(own or template, tuple(profile))
