"""The files on disk that Trainyard rendered, and which profile they were rendered for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import UsageError
from trainyard.project_files import read_text
from trainyard.render.header import Header, may_hold_header, read_header
from trainyard.render.project import Project
from trainyard.render.templates import SUFFIX


@dataclass(frozen=True)
class FileOnDisk:
    """A file that Trainyard rendered, with its present text."""

    path: Path
    text: str
    header: Header


def files_on_disk(project: Project, root: Path) -> list[FileOnDisk]:
    """Return every rendered file below a root, in the folders that the templates have; sorted by path.

    A copy under another name belongs to whoever made it, and is left out.
    """
    return [
        found
        for path in _candidates(project, root)
        if (found := read_rendered(path)) is not None
        if path == root / found.header.template.removesuffix(SUFFIX)
    ]


def read_rendered(path: Path) -> FileOnDisk | None:
    """Return a file with its header, or None if it does not exist, is not text, or was not rendered by Trainyard."""
    try:
        if not may_hold_header(path):
            return None
        text = read_text(path)
        header = read_header(text)
    except (OSError, UnicodeDecodeError):
        return None
    return FileOnDisk(path, text, header) if header is not None else None


def rendered_for(
    project: Project, root: Path, profile_name: str | None, settings: Mapping[str, object] | None
) -> tuple[str, dict[str, object]]:
    """Return the profile and settings to render: those given, or those that most files on disk were rendered for.

    Settings without a profile are applied on top of those on disk. Raise UsageError if neither names a profile.
    """
    if profile_name is not None:
        return profile_name, dict(settings or {})
    found = files_on_disk(project, root)
    if not found:
        raise UsageError(f"nothing is rendered in {root} yet, so name a profile, such as: trainyard render t4")
    headers = {file.header.arguments: file.header for file in found}
    [(most_common, _)] = Counter(file.header.arguments for file in found).most_common(1)
    header = headers[most_common]
    return header.profile, {**header.settings, **(settings or {})}


def _candidates(project: Project, root: Path) -> Iterator[Path]:
    folders = sorted(path.name for path in project.templates.iterdir() if path.is_dir())
    for folder in folders:
        yield from sorted(path for path in (root / folder).rglob("*") if path.is_file())
