"""Edits of rendered files: the line that would make each, carried back into it, or the file taken out of rendering."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import UsageError
from trainyard.project_files import read_text, write_text
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import Project
from trainyard.render.rendered_files import FileOnDisk, content_of, header_line, read_rendered
from trainyard.render.rendering import RenderedFile, released_templates
from trainyard.spec.diagnostic import Span

# The key, its value, and a comment.
_SETTING = re.compile(r"(?P<key>\s*(?:- )?[\"\w$.-]+:\s+)(?P<value>\S.*?)(?P<end>,?(?:\s+#.*)?)")
_BETWEEN_WORDS = re.compile(r"([\s:/,={}\[\]\"'])")
_TO_RELEASE = "to keep the edit without them, release the file: `trainyard render --release {}`"


@dataclass(frozen=True)
class EditedLines:
    """Lines of a rendered file that differ from their rendering; `line` is the first of them on disk."""

    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    sources: tuple[Span, ...]
    """Where the first line is from: a line of the profile, else of a template; the template below it last."""


def edits_of(project: Project, file: Path) -> list[EditedLines]:
    """Return where a rendered file differs from its rendering. Raise UsageError for a file that was not rendered."""
    on_disk = _rendered_by_us(project, file)
    return list(_edits(_rendering_of(project, on_disk), on_disk.text))


def _edits(rendered: RenderedFile, text: str) -> Iterator[EditedLines]:
    old, new = rendered.text.split("\n"), text.replace("\r\n", "\n").split("\n")
    header = slice(header_line(rendered.path) - 1, header_line(rendered.path))
    new[header] = old[header]  # of another version or command, which is not an edit
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, old_start, old_end, start, end in matcher.get_opcodes():
        if kind == "equal":
            continue
        if old_end - old_start == end - start:  # lines that were changed in place
            for offset in range(end - start):
                at = old_start + offset
                yield EditedLines(start + offset + 1, (old[at],), (new[start + offset],), _sources(rendered, at + 1))
            continue
        # What was added belongs below the line above it.
        nearest = old_start + 1 if old_end > old_start else old_start
        yield EditedLines(start + 1, tuple(old[old_start:old_end]), tuple(new[start:end]), _sources(rendered, nearest))


def _sources(rendered: RenderedFile, line: int) -> tuple[Span, ...]:
    source = rendered.source_map.source_of(line)
    if source is None:
        return ()
    return (*source.profile, *((source.template,) if source.template is not None else ()))


def adopt(project: Project, file: Path) -> list[str]:
    """Write the values that were changed in a rendered file into its profile or template, and return what was changed.

    The file then is what they render. Raise UsageError, with everything as it was, where that is not possible: for a
    line whose value is computed, and for lines that were added or removed.
    """
    on_disk = _rendered_by_us(project, file)
    file = on_disk.path
    shown = project.shown(file)
    rendered = _rendering_of(project, on_disk)
    edits = list(_edits(rendered, on_disk.text))
    if not edits:
        raise UsageError(f"{project.shown(file)} is what its template and profile render: there is nothing to adopt.")
    before: dict[Path, str] = {}
    lines = []
    try:
        for edit in edits:
            place = _write_back(edit, project, on_disk, before)
            lines.append(f"{project.shown(place.file)}:{place.line}: {edit.new[0].strip()}")
        if content_of(_rendering_of(project, on_disk).text) != content_of(on_disk.text.replace("\r\n", "\n")):
            raise UsageError(f"{shown}: the changed values do not render this file; {_TO_RELEASE.format(shown)}.")
    except BaseException:  # Ctrl-C and a full disk included
        for changed, text in before.items():
            write_text(changed, text, project.root)
        raise
    return list(dict.fromkeys(lines))


def _write_back(edit: EditedLines, project: Project, on_disk: FileOnDisk, before: dict[Path, str]) -> Span:
    """Change the line that an edit comes from, and return where; `before` keeps the text of what is changed."""
    shown, template = project.shown(on_disk.path), on_disk.header.template
    where, to_release = f"{shown}:{edit.line}", _TO_RELEASE.format(shown)
    old, new = (_SETTING.fullmatch(lines[0]) if len(lines) == 1 else None for lines in (edit.old, edit.new))
    if old is None or new is None or old["key"] != new["key"]:
        raise UsageError(f"{where}: only the value of a key can be adopted, not other lines; {to_release}.")
    own = {project.templates / template, *project.profiles.glob("*.yaml")}
    for place in edit.sources:
        if place.file not in own:
            continue  # what many templates share, or --set
        text = read_text(place.file)
        lines = text.split("\n")
        line = lines[place.line - 1]
        if line.endswith(new["value"]) and place.file in before:
            return place  # another edit of the same value has changed it
        for old_words, new_words in ((old["value"], new["value"]), _differing(old["value"], new["value"])):
            pattern = rf"(?<![\w.-]){re.escape(old_words)}(?![\w.-])"
            changed, count = re.subn(pattern, new_words.replace("\\", r"\\"), line)
            if old_words and count == 1:
                before.setdefault(place.file, text)
                lines[place.line - 1] = changed
                write_text(place.file, "\n".join(lines), project.root)
                return place
    what = f"'{old['key'].strip().rstrip(':')}'"
    places = " and ".join(f"{project.shown(each.file)}:{each.line}" for each in edit.sources)
    raise UsageError(f"{where}: the value of {what} cannot be written back: it is made by {places}; {to_release}.")


def _differing(old: str, new: str) -> tuple[str, str]:
    """Return the words in which two values differ, without those that they have in common at both ends."""
    old_words, new_words = _BETWEEN_WORDS.split(old), _BETWEEN_WORDS.split(new)
    while old_words and new_words and old_words[0] == new_words[0]:
        del old_words[0], new_words[0]
    while old_words and new_words and old_words[-1] == new_words[-1]:
        del old_words[-1], new_words[-1]
    return "".join(old_words), "".join(new_words)


def release(project: Project, file: Path) -> list[str]:
    """Render a file no longer, and return what was done: its header goes, and its template is listed as released."""
    on_disk = _rendered_by_us(project, file)
    _rendering_of(project, on_disk)  # refuses what is rendered elsewhere, such as a copy for another profile
    released = sorted({*released_templates(project), on_disk.header.template})
    write_text(on_disk.path, content_of(on_disk.text), project.root)
    write_text(project.released, "".join(f"{template}\n" for template in released), project.root)
    return [
        f"{project.shown(on_disk.path)} is yours from now on: lint checks it, and nothing renders it",
        f"its template is listed in {project.shown(project.released)}; to undo this, delete that line and the file",
    ]


def describe_edits(project: Project, edits: Sequence[EditedLines]) -> Iterator[str]:
    """Yield a line for each edit, with the line of the profile or of the template that would make it."""
    for edit in edits:
        if not edit.sources:
            continue
        place = f"{project.shown(edit.sources[0].file)}:{edit.sources[0].line}"
        template = edit.sources[-1]
        through = f" (through {project.shown(template.file)}:{template.line})" if len(edit.sources) > 1 else ""
        yield f"line {edit.line}: change {place}{through}"


def _rendered_by_us(project: Project, file: Path) -> FileOnDisk:
    on_disk = read_rendered(file.resolve())
    if on_disk is None:
        raise UsageError(f"{project.shown(file.resolve())} was not rendered by Trainyard: it has no header.")
    return on_disk


def _rendering_of(project: Project, on_disk: FileOnDisk) -> RenderedFile:
    header = on_disk.header
    rendering = render_limited(project, header.profile, header.settings, only={header.template}, with_sources=True)
    for rendered in rendering.files.values():
        if rendered.path == on_disk.path:
            return rendered
    raise UsageError(f"profile {header.profile} does not render {project.shown(on_disk.path)}.")
