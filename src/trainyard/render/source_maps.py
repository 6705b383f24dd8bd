"""Source maps: which template line, and which lines of a profile, a rendered line comes from.

The text is rendered a second time, with marks in the template's own text and around values that know where they were
written; the marks are read off line by line. The text that is written never holds marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jinja2.ext import Extension
from jinja2.lexer import Token

from trainyard.render.project import Project
from trainyard.render.templates import CompiledTemplates, TemplateSet
from trainyard.render.values import origin_of
from trainyard.spec.diagnostic import Span

# Code points that Unicode leaves to private use, so no template holds them: begin of a mark, and its end.
_BEGIN, _END = "\ue000", "\ue001"
# Of a template's line: the template's name and the line. Of a value: the index of its place.
_MARK = re.compile(f"{_BEGIN}(?:([^{_END}]+):)?([0-9]+){_END}")
_COMPILED_WITH_MARKS = CompiledTemplates()


class LineSource(NamedTuple):
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

    def mark_value(value: Any) -> Any:
        origin = origin_of(value)
        if origin is None:
            return value
        places.append(origin)
        return f"{_BEGIN}{len(places) - 1}{_END}{value}"

    templates = TemplateSet(project, _COMPILED_WITH_MARKS, extensions=[_MarkLines], finalize=mark_value)
    marked = render_with(templates)
    # If a template inspects its own text, marks may change the result: then there is no map.
    return tuple(_read_marks(marked, project, places)) if _MARK.sub("", marked) == content else ()


class _MarkLines(Extension):
    """Marks the beginning of each line of a template's own text, and of each `{{ … }}`."""

    def filter_stream(self, stream: Any) -> Iterator[Token]:
        for token in stream:
            if token.type == "variable_begin":
                yield Token(token.lineno, "data", _line_mark(stream.name, token.lineno))
            if token.type == "data":
                lines = enumerate(token.value.splitlines(keepends=True), token.lineno)
                yield Token(token.lineno, "data", "".join(_line_mark(stream.name, line) + text for line, text in lines))
            else:
                yield token


def _line_mark(template: str, line: int) -> str:
    return f"{_BEGIN}{template}:{line}{_END}"


def _read_marks(marked: str, project: Project, places: Sequence[Span]) -> Iterator[LineSource]:
    """Yield the source of each line of a marked text. A line without marks has the source of the line above."""
    template: Span | None = None
    for line in marked.split("\n"):
        own: Span | None = None
        profile: list[Span] = []
        for found in _MARK.finditer(line):
            name, number = found.group(1), int(found.group(2))
            if name is not None:
                template = Span(project.templates / name, number, 1, number, 1)
                if own is None and _MARK.sub("", line[found.end() :].split(_BEGIN, 1)[0]).strip():
                    own = template
            elif places[number] not in profile:
                profile.append(places[number])
        yield LineSource(own or template, tuple(profile))
