"""Which template line, and which lines of a profile, a rendered line comes from.

The text is rendered a second time, with marks in the template's own text and around values that know where they were
written; the marks are read off line by line. The text that is written never holds marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.author.project import Project
from trainyard.author.written import origin_of
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError

if TYPE_CHECKING:
    from trainyard.author.rendering import RenderedFile

# Code points that Unicode leaves to private use, so no template holds them: begin of a mark, and its end.
_BEGIN, _END = "\ue000", "\ue001"
_MARK = re.compile(f"{_BEGIN}([0-9]+){_END}")


@dataclass(frozen=True)
class LineSource:
    """What one rendered line comes from: a template's line, and the profile lines of the values in it."""

    template: Span | None
    profile: tuple[Span, ...] = ()


@dataclass(frozen=True)
class SourceMap:
    """The source of each line of a rendered file; `first_line` is the line that `lines[0]` is about."""

    lines: tuple[LineSource, ...]
    first_line: int

    def source_of(self, line: int) -> LineSource | None:
        """Where a line (counted from 1) comes from; None for lines of the header and beyond the end."""
        index = line - self.first_line
        return self.lines[index] if 0 <= index < len(self.lines) else None


def map_sources(project: Project, content: str, render_with: Callable[[Any], str]) -> tuple[LineSource, ...]:
    """The source of each line of a content. `render_with` renders it again with the given templates."""
    places: list[Span] = []
    templates = _marking_templates(project, places)
    marked = render_with(templates)
    # Where a template looks at the very characters of its own text, marks may change the outcome: then no map.
    return tuple(_read_marks(marked, places)) if _MARK.sub("", marked) == content else ()


def _marking_templates(project: Project, places: list[Span]) -> Any:
    """The project's templates, rendering with marks whose numbers are indices into `places`."""
    from jinja2.ext import Extension
    from jinja2.lexer import Token

    from trainyard.author.templates import TemplateSet

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
    """The source of each line of a marked text. A line without marks continues what the line above came from."""
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


def relate(diagnostics: Sequence[Diagnostic], project: Project) -> list[Diagnostic]:
    """Add the template's and the profile's line to each finding that lies in a rendered file.

    Files are rendered again for this, once each. Lines that were edited by hand since are told
    apart from those that were not; where the profile or templates no longer render, findings stay as they are.
    """
    finder = _SourceFinder(project)
    return [replace(each, related=(*each.related, *finder.related_of(each.span))) for each in diagnostics]


class _SourceFinder:
    """Finds the sources of lines in rendered files, rendering each profile once."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._lines: dict[Path, Callable[[int], tuple[Related, ...]]] = {}

    def related_of(self, span: Span) -> tuple[Related, ...]:
        if span.file not in self._lines:
            self._lines[span.file] = self._line_sources(span.file)
        return self._lines[span.file](span.line)

    def _line_sources(self, file: Path) -> Callable[[int], tuple[Related, ...]]:
        from trainyard.author.rendered_files import read_rendered
        from trainyard.author.rendering import render
        from trainyard.author.templates import SUFFIX
        from trainyard.errors import UsageError

        try:
            on_disk = read_rendered(file)
            if on_disk is None:
                return lambda _: ()
            target = Path(on_disk.header.template.removesuffix(SUFFIX))
            root = file.resolve().parents[len(target.parts) - 1]
            rendering = render(self._project, on_disk.header.profile, on_disk.header.settings, root)
        except (SpecError, UsageError):
            return lambda _: ()
        rendered = rendering.files.get(root / target)
        if rendered is None:
            return lambda _: ()
        return _sources_by_disk_line(rendered, on_disk.text)


def _sources_by_disk_line(rendered: RenderedFile, text: str) -> Callable[[int], tuple[Related, ...]]:
    """A function from a line on disk to its sources, also where the file was edited or has drifted since.

    A line that was changed in its place still has a template line: that is where the change belongs. One that was
    added has none.
    """
    here = {line: (line, "rendered from this line") for line in range(1, text.count("\n") + 2)}
    if text != rendered.text:
        here = _lines_since_rendered(text, rendered.text)

    def related(line: int) -> tuple[Related, ...]:
        if line not in here:
            return ()
        rendered_line, message = here[line]
        source = rendered.source_map.source_of(rendered_line)
        if source is None:
            return ()
        templates = (Related(source.template, message),) if source.template is not None else ()
        return templates + tuple(Related(span, "the value comes from the profile") for span in source.profile)

    return related


def _lines_since_rendered(text: str, rendered_text: str) -> dict[int, tuple[int, str]]:
    """For each line on disk, the line it was rendered as, and what to say of that."""
    import difflib

    message_of = {
        "equal": "rendered from this line",
        "replace": "rendered from this line, and edited since: a change belongs here",
    }
    matcher = difflib.SequenceMatcher(None, text.split("\n"), rendered_text.split("\n"), autojunk=False)
    return {
        line + 1: (rendered_line + 1, message_of[kind])
        for kind, start, end, rendered_start, rendered_end in matcher.get_opcodes()
        if kind in message_of and end - start == rendered_end - rendered_start
        for line, rendered_line in zip(range(start, end), range(rendered_start, rendered_end), strict=True)
    }
