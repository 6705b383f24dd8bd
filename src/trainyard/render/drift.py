"""Drift: how the files on disk differ from what their profile and templates render now."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainyard.project_files import text_or_empty
from trainyard.render.copies import stale_copies
from trainyard.render.project import Project
from trainyard.render.rendered_files import (
    FileOnDisk,
    Header,
    content_of,
    edited_by_hand,
    files_on_disk,
    has_merge_marks,
)
from trainyard.render.rendering import Rendering


@dataclass(frozen=True)
class Drift:
    """One file that differs from its rendering; `diff` is unified, from disk to rendered.

    `is_foreign` where it holds what somebody wrote: it was edited by hand, or not rendered by Trainyard.
    """

    path: Path
    reason: str
    diff: str
    kind: Literal["changed", "added", "removed"] = "changed"
    is_foreign: bool = False


def find_drift(rendering: Rendering) -> list[Drift]:
    """Return every rendered file that differs from its rendering, is missing, or is no longer rendered."""
    project = rendering.project
    copies = stale_copies(project) if rendering.root == project.root else []
    drifted = sorted(_drifts(rendering, lambda file: file.text), key=lambda drift: drift.path)
    return drifted + [Drift(copy.path, copy.reason, _diff(project, copy.path, *copy.texts())) for copy in copies]


def difference(rendering: Rendering) -> list[Drift]:
    """Return what writing a rendering would change, sorted by path.

    The headers, which only say what a file was rendered from, are left out: both sides have the new one.
    """

    def with_new_header(file: FileOnDisk) -> str:
        header = Header(file.header.template, rendering.profile.name, rendering.profile.settings)
        return header.joined_with(file.path, content_of(file.text))

    return sorted(_drifts(rendering, with_new_header), key=lambda drift: drift.path)


def _drifts(rendering: Rendering, text_of: Callable[[FileOnDisk], str]) -> Iterator[Drift]:
    project = rendering.project
    on_disk = {file.path: file for file in files_on_disk(project, rendering.root)}
    old = {path: text_of(file) for path, file in on_disk.items()}
    new = {path: file.text for path, file in rendering.files.items()}
    differing = [file for path, file in on_disk.items() if old[path] != new.get(path)]
    edited = edited_by_hand(project, rendering.root, differing)
    for file in differing:
        path, is_edited = file.path, file.path in edited
        reason = _reason(file, rendering, is_edited=is_edited)
        diff = _diff(project, path, old[path], new.get(path, ""))
        yield Drift(path, reason, diff, "changed" if path in new else "removed", is_foreign=is_edited)
    for path in new.keys() - on_disk.keys():
        if path.exists():
            diff = _diff(project, path, text_or_empty(path), new[path])
            yield Drift(path, "was not rendered by Trainyard", diff, is_foreign=True)
        else:
            yield Drift(path, "is missing", _diff(project, path, "", new[path]), "added")


def _reason(file: FileOnDisk, rendering: Rendering, *, is_edited: bool) -> str:
    header, profile = file.header, rendering.profile
    if is_edited:
        return f"was edited by hand; edit templates/{header.template} or profiles/{header.profile}.yaml instead"
    if file.path not in rendering.files:
        return f"profile {profile.name} does not render this file"
    if has_merge_marks(file.text):
        return "holds both sides of a merge's conflict; `trainyard render` writes it again"
    if (header.profile, header.settings) != (profile.name, profile.settings):
        return f"was rendered for profile {header.arguments}"
    return f"is not what templates/{header.template} and profile {header.profile} render now"


def _diff(project: Project, path: Path, old: str, new: str) -> str:
    name = project.shown(path)
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
