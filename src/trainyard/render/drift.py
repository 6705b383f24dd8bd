"""Drift: how the files on disk differ from what their profile and templates render now."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.project_files import read_text
from trainyard.render.copies import stale_copies
from trainyard.render.hand_edits import edited_by_hand, has_merge_marks
from trainyard.render.header import Header, content_of
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import Project
from trainyard.render.rendered_files import FileOnDisk, files_on_disk
from trainyard.render.rendering import Rendering


@dataclass(frozen=True)
class Drift:
    """One file that differs from its rendering; `diff` is unified, from disk to rendered."""

    path: Path
    reason: str
    diff: str


def find_drift(
    project: Project,
    profile_name: str | None = None,
    settings: Mapping[str, object] | None = None,
    out: Path | None = None,
) -> list[Drift]:
    """Return every rendered file that differs from its rendering, is missing, or is no longer rendered; write nothing.

    Without a profile's name, it is the one in the files' headers.
    """
    rendering = render_limited(project, profile_name, settings, out)
    copies = stale_copies(project) if rendering.root == project.root else []
    return drift_from(project, rendering) + [
        Drift(copy.path, copy.reason, _diff(project, copy.path, *copy.texts())) for copy in copies
    ]


def drift_from(project: Project, rendering: Rendering) -> list[Drift]:
    """Return how the disk differs from a rendering, sorted by path."""
    on_disk = {file.path: file for file in files_on_disk(project, rendering.root)}
    return sorted(_drifts(project, rendering, on_disk), key=lambda drift: drift.path)


def difference(project: Project, rendering: Rendering) -> list[Drift]:
    """Return what writing a rendering would change, sorted by path.

    The headers, which only say what a file was rendered from, are left out: both sides have the new one.
    """
    on_disk = {file.path: _with_header_of(file, rendering) for file in files_on_disk(project, rendering.root)}
    return sorted(_drifts(project, rendering, on_disk), key=lambda drift: drift.path)


def _with_header_of(file: FileOnDisk, rendering: Rendering) -> FileOnDisk:
    """Return a file on disk with the header that it would have when rendered."""
    if file.path not in rendering.files:
        return file
    header = Header(file.header.template, rendering.profile.name, rendering.profile.settings)
    return replace(file, text=header.joined_with(file.path, content_of(file.text)))


def _drifts(project: Project, rendering: Rendering, on_disk: Mapping[Path, FileOnDisk]) -> Iterator[Drift]:
    differing = [file for path, file in on_disk.items() if _text_in(rendering, path) != file.text]
    edited = edited_by_hand(project, rendering.root, differing)
    for file in differing:
        reason = _reason(file, rendering, is_edited=file.path in edited)
        yield Drift(file.path, reason, _diff(project, file.path, file.text, _text_in(rendering, file.path)))
    for path, rendered in rendering.files.items():
        if path not in on_disk:
            exists = path.exists()
            reason = "was not rendered by Trainyard" if exists else "is missing"
            yield Drift(path, reason, _diff(project, path, _text_of(path) if exists else "", rendered.text))


def _text_in(rendering: Rendering, path: Path) -> str:
    return rendering.files[path].text if path in rendering.files else ""


def _reason(file: FileOnDisk, rendering: Rendering, *, is_edited: bool) -> str:
    header, profile = file.header, rendering.profile
    if file.path not in rendering.files:
        return f"profile {profile.name} does not render this file"
    if has_merge_marks(file.text):
        return "holds both sides of a merge's conflict; `trainyard render` writes it again"
    if is_edited:
        return f"was edited by hand; edit templates/{header.template} or profiles/{header.profile}.yaml instead"
    if (header.profile, header.settings) != (profile.name, profile.settings):
        return f"was rendered for profile {header.arguments}"
    return f"is not what templates/{header.template} and profile {header.profile} render now"


def _diff(project: Project, path: Path, old: str, new: str) -> str:
    name = project.shown(path)
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _text_of(path: Path) -> str:
    try:
        return read_text(path, errors="replace")
    except OSError:
        return ""
