"""Drift: how the files on disk differ from what their profile and templates render now."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trainyard.project_files import read_text
from trainyard.render.copies import stale_copies
from trainyard.render.header import content_of, read_header, was_edited
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import Project
from trainyard.render.rendered_files import FileOnDisk, files_on_disk
from trainyard.render.rendering import RenderedFile, Rendering
from trainyard.render.settings import as_arguments


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
    on_disk = {found.path: found for found in files_on_disk(project, rendering.root)}
    return sorted(_drifts(project, rendering, on_disk), key=lambda drift: drift.path)


def difference(project: Project, rendering: Rendering) -> str:
    """Return what writing a rendering would change, as one unified diff; empty if nothing.

    The headers, which only say what a file was rendered from, are left out: both sides have the new one.
    """
    on_disk = {found.path: _with_header_of(found, rendering) for found in files_on_disk(project, rendering.root)}
    return "".join(drift.diff for drift in sorted(_drifts(project, rendering, on_disk), key=lambda drift: drift.path))


def _with_header_of(found: FileOnDisk, rendering: Rendering) -> FileOnDisk:
    """Return a file on disk with the header that it would have when rendered."""
    rendered = rendering.files.get(found.path)
    header = read_header(rendered.text) if rendered is not None else None
    return replace(found, text=header.joined_with(found.path, content_of(found.text))) if header else found


def _drifts(project: Project, rendering: Rendering, on_disk: Mapping[Path, FileOnDisk]) -> Iterator[Drift]:
    for path, file in rendering.files.items():
        found = on_disk.get(path)
        if found is None:
            exists = path.exists()
            old = _text_of(path) if exists else ""
            reason = "was not rendered by Trainyard" if exists else "is missing"
            yield Drift(path, reason, _diff(project, path, old, file.text))
        elif found.text != file.text:
            yield Drift(path, _reason(found, file, rendering), _diff(project, path, found.text, file.text))
    for path, found in on_disk.items():
        if path not in rendering.files:
            reason = f"profile {rendering.profile.name} does not render this file"
            yield Drift(path, reason, _diff(project, path, found.text, ""))


def _reason(found: FileOnDisk, file: RenderedFile, rendering: Rendering) -> str:
    """Return why a file differs, as far as the digests in its header show."""
    header = found.header
    if was_edited(found.text, header):
        return f"was edited by hand; edit templates/{header.template} or profiles/{header.profile}.yaml instead"
    if (header.profile, dict(header.settings)) != (rendering.profile.name, dict(rendering.profile.settings)):
        return f"was rendered for profile {header.profile}{as_arguments(header.settings)}"
    if header.profile_digest != rendering.profile.digest:
        return f"profile {header.profile} has changed since"
    return f"templates/{file.template} or the step's settings have changed since"


def _diff(project: Project, path: Path, old: str, new: str) -> str:
    name = project.shown(path)
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _text_of(path: Path) -> str:
    try:
        return read_text(path, errors="replace")
    except OSError:
        return ""
