"""Findings in rendered files, with the template's and the profile's lines behind them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trainyard.author.header import Header
from trainyard.author.project import Project
from trainyard.author.rendered_files import read_rendered
from trainyard.author.rendering import RenderedFile, Rendering, render
from trainyard.author.templates import SUFFIX
from trainyard.errors import UsageError
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError

_FROM_PROFILE = "the value comes from the profile"


class SourceFinder:
    """Finds the sources of lines in rendered files. Each profile is rendered again for this, once."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._renderings: dict[str, Rendering | None] = {}

    def relate(
        self, diagnostics: Sequence[Diagnostic], texts: Mapping[Path, str] = MappingProxyType({})
    ) -> list[Diagnostic]:
        """Return findings with the template's and the profile's lines added to those in rendered files.

        Lines that were edited by hand since are distinguished from others; if the profile or a template no longer
        renders, findings stay as they are. `texts` replace what is on disk.
        """
        lines = {file: self._line_sources(file, texts) for file in {each.span.file for each in diagnostics}}
        return [each._replace(related=(*each.related, *lines[each.span.file](each.span.line))) for each in diagnostics]

    def written_at(self, span: Span) -> Span:
        """Return where to change what a rendered line holds: in the profile, else in the template, else there."""
        sources = self._line_sources(span.file, {})(span.line)
        from_profile = [each.span for each in sources if each.message == _FROM_PROFILE]
        return [span, *(each.span for each in sources), *from_profile][-1]

    def _line_sources(self, file: Path, texts: Mapping[Path, str]) -> Callable[[int], tuple[Related, ...]]:
        try:
            on_disk = read_rendered(file)
            if on_disk is None:
                return lambda _: ()
        except (SpecError, UsageError):
            return lambda _: ()
        target = Path(on_disk.header.template.removesuffix(SUFFIX))
        root = file.resolve().parents[len(target.parts) - 1]
        rendering = self._rendering(on_disk.header, root)
        rendered = rendering.files.get(root / target) if rendering is not None else None
        if rendered is None:
            return lambda _: ()
        return _sources_by_disk_line(rendered, texts.get(file, on_disk.text))

    def _rendering(self, header: Header, root: Path) -> Rendering | None:
        key = json.dumps([str(root), header.profile, header.settings], sort_keys=True, default=str)
        if key not in self._renderings:
            try:
                self._renderings[key] = render(self._project, header.profile, header.settings, root)
            except (SpecError, UsageError):
                self._renderings[key] = None
        return self._renderings[key]


def _sources_by_disk_line(rendered: RenderedFile, text: str) -> Callable[[int], tuple[Related, ...]]:
    """Return a function from a line on disk to its sources, even if the file was edited or has drifted since.

    A line that was changed in place still has a template line, where the change belongs. An added line has none.
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
        return templates + tuple(Related(span, _FROM_PROFILE) for span in source.profile)

    return related


def _lines_since_rendered(text: str, rendered_text: str) -> dict[int, tuple[int, str]]:
    """Return, for each line on disk, the rendered line it corresponds to and the message about it."""
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
