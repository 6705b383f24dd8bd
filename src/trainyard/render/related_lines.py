"""Findings in rendered files, with the template's and the profile's lines behind them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from trainyard.errors import UsageError
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import Project
from trainyard.render.rendered_files import FileOnDisk, read_rendered
from trainyard.render.rendering import RenderedFile
from trainyard.render.templates import SUFFIX
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError

_MOST_PROCESSES = 8
"""Forged headers could name any number of profiles and settings."""
_FROM_PROFILE = "the value comes from the profile"
_FROM_TEMPLATE = "rendered from this line"


class SourceFinder:
    """Finds the sources of lines in rendered files, whose templates are rendered again for this, with limits."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._rendered: dict[tuple[str, str], RenderedFile | None] = {}
        self._processes = 0

    def relate(
        self, diagnostics: Sequence[Diagnostic], texts: Mapping[Path, str] = MappingProxyType({})
    ) -> list[Diagnostic]:
        """Return findings with the template's and the profile's lines added, once, to those in rendered files.

        Lines that were edited by hand since are distinguished from others; if the profile or a template no longer
        renders, findings stay as they are. `texts` replace what is on disk.
        """
        files = {each.span.file for each in diagnostics}
        self._render_together([found for file in files if (found := read_rendered(file)) is not None])
        lines = {file: self._line_sources(file, texts) for file in files}
        return [
            each._replace(related=tuple(dict.fromkeys((*each.related, *lines[each.span.file](each.span.line)))))
            for each in diagnostics
        ]

    def written_at(self, span: Span) -> Span | None:
        """Return where to change what a rendered line holds: in the profile, else in the template, else there.

        None for a line of a macro that many templates share: what it writes is a default.
        """
        sources = self._line_sources(span.file, {})(span.line)
        from_profile = [each.span for each in sources if each.message == _FROM_PROFILE]
        place = [span, *(each.span for each in sources), *from_profile][-1]
        return None if place.file.name.startswith("_") else place

    def _line_sources(self, file: Path, texts: Mapping[Path, str]) -> Callable[[int], tuple[Related, ...]]:
        on_disk = read_rendered(file)
        if on_disk is None:
            return lambda _: ()
        self._render_together([on_disk])
        rendered = self._rendered[_key(on_disk), on_disk.header.template]
        if rendered is None:
            return lambda _: ()
        return _sources_by_disk_line(rendered, texts.get(file, on_disk.text))

    def _render_together(self, files: Sequence[FileOnDisk]) -> None:
        """Render the templates of files, those of one profile in one process."""
        by_profile: dict[str, list[FileOnDisk]] = {}
        for file in files:
            if (_key(file), file.header.template) not in self._rendered:
                by_profile.setdefault(_key(file), []).append(file)
        for key, same in by_profile.items():
            templates = {file.header.template for file in same}
            found = self._render(same[0], templates)
            self._rendered |= {(key, template): found.get(template) for template in templates}

    def _render(self, file: FileOnDisk, templates: Collection[str]) -> dict[str, RenderedFile]:
        if self._processes == _MOST_PROCESSES:
            return {}
        self._processes += 1
        header, root = file.header, _root_of(file)
        try:
            rendering = render_limited(
                self._project, header.profile, header.settings, root, only=templates, with_sources=True
            )
        except (SpecError, UsageError):
            return {}
        return {each.template: each for each in rendering.files.values()}


def _root_of(file: FileOnDisk) -> Path:
    """Return the folder that the project's root corresponds to, which may be that of `render --out`."""
    depth = len(Path(file.header.template.removesuffix(SUFFIX)).parts)
    above = file.path.resolve().parents
    return above[min(depth, len(above)) - 1]


def _key(file: FileOnDisk) -> str:
    return f"{_root_of(file)}\0{file.header.arguments}"


def _sources_by_disk_line(rendered: RenderedFile, text: str) -> Callable[[int], tuple[Related, ...]]:
    """Return a function from a line on disk to its sources, even if the file was edited or has drifted since.

    A line that was changed in place still has a template line, where the change belongs. An added line has none.
    """
    is_same = text == rendered.text
    here = {} if is_same else _lines_since_rendered(text, rendered.text)

    def related(line: int) -> tuple[Related, ...]:
        rendered_line, message = (line, _FROM_TEMPLATE) if is_same else here.get(line, (0, ""))
        source = rendered.source_map.source_of(rendered_line)
        if source is None:
            return ()
        templates = (Related(source.template, message),) if source.template is not None else ()
        return templates + tuple(Related(span, _FROM_PROFILE) for span in source.profile)

    return related


def _lines_since_rendered(text: str, rendered_text: str) -> dict[int, tuple[int, str]]:
    """Return, for each line on disk, the rendered line it corresponds to and the message about it."""
    message_of = {
        "equal": _FROM_TEMPLATE,
        "replace": f"{_FROM_TEMPLATE}, and edited since: a change belongs here",
    }
    matcher = difflib.SequenceMatcher(None, text.split("\n"), rendered_text.split("\n"), autojunk=False)
    return {
        line + 1: (rendered_line + 1, message_of[kind])
        for kind, start, end, rendered_start, rendered_end in matcher.get_opcodes()
        if kind in message_of and end - start == rendered_end - rendered_start
        for line, rendered_line in zip(range(start, end), range(rendered_start, rendered_end), strict=True)
    }
