"""Rendered files → the disk: each whole or not at all, and never over what somebody else wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.author import rules
from trainyard.author.header import was_edited
from trainyard.author.project import Project
from trainyard.author.rendered_files import FileOnDisk, files_on_disk
from trainyard.author.rendering import RenderedFile, Rendering
from trainyard.foundation.atomic_files import replace_text
from trainyard.spec.diagnostic import Span, SpecError


@dataclass
class WriteReport:
    """What writing a rendering did. `saved` says, of hand-edited files that were replaced, where their text is now."""

    project: Project
    profile: str
    written: list[Path] = field(default_factory=list)
    unchanged: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    saved: dict[Path, Path] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The report for people: what was saved first, then every change, then a count."""
        shown = self.project.shown
        changes = [f"wrote {shown(path)}" for path in self.written]
        changes += [f"removed {shown(path)}: profile {self.profile} makes no such file" for path in self.removed]
        kept = [
            f"{shown(path)} had been edited by hand: its text is kept in {shown(copy)}"
            for path, copy in self.saved.items()
        ]
        total = len(self.written) + len(self.unchanged)
        count = f"{self.profile}: {total} files, {len(self.written)} changed, {len(self.removed)} removed"
        return [*kept, *changes, count]


def write(project: Project, rendering: Rendering) -> WriteReport:
    """Write what has changed, and remove rendered files that this rendering no longer has.

    Files that Trainyard did not render are never touched: when one is in the way nothing at all is written, and
    SpecError names them. A rendered file that was edited by hand is replaced, after its text was saved below
    `.trainyard/replaced/`. Each file appears at once and whole. Raises SpecError when something cannot be written.
    """
    report = WriteReport(project, rendering.profile.name)
    on_disk = {found.path: found for found in files_on_disk(project, rendering.root)}
    _refuse_foreign_files(rendering, on_disk)
    changed = [file for file in rendering.files.values() if _differs(file, on_disk.get(file.path))]
    report.unchanged = [path for path in rendering.files if path not in {file.path for file in changed}]
    orphans = [found for path, found in on_disk.items() if path not in rendering.files]
    replaced = [on_disk[file.path] for file in changed if file.path in on_disk]
    report.saved = _save_edited([*replaced, *orphans], project, rendering.root)
    for file in changed:
        write_atomically(file.path, file.text)
        report.written.append(file.path)
    for orphan in orphans:
        with _explaining(orphan.path, "removed"):
            orphan.path.unlink()
        report.removed.append(orphan.path)
    return report


def write_atomically(path: Path, text: str) -> None:
    """Put a text where a path is: whole or, when that fails, not at all. Raises SpecError naming the path."""
    with _explaining(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, text)


def _differs(file: RenderedFile, on_disk: FileOnDisk | None) -> bool:
    return on_disk is None or on_disk.text != file.text


def _refuse_foreign_files(rendering: Rendering, on_disk: dict[Path, FileOnDisk]) -> None:
    foreign = [path for path in rendering.files if path not in on_disk and (path.exists() or path.is_symlink())]
    if foreign:
        hint = "Move it away, or delete it if it is not needed; nothing was written."
        raise SpecError(
            [
                rules.NOT_OURS.at(Span(path), "Trainyard did not render this, so it is left as it is", hint=hint)
                for path in foreign
            ]
        )


def _save_edited(files: Sequence[FileOnDisk], project: Project, root: Path) -> dict[Path, Path]:
    """Keep the text of hand-edited files in a new numbered folder; where each went."""
    edited = [file for file in files if was_edited(file.text, file.header)]
    if not edited:
        return {}
    with _explaining(project.replaced, "written"):
        project.replaced.mkdir(parents=True, exist_ok=True)
        numbers = [int(folder.name) for folder in project.replaced.iterdir() if folder.name.isdecimal()]
    folder = project.replaced / str(max(numbers, default=0) + 1)
    saved = {file.path: folder / file.path.relative_to(root) for file in edited}
    for file in edited:
        write_atomically(saved[file.path], file.text)
    return saved


@contextlib.contextmanager
def _explaining(path: Path, done: str) -> Iterator[None]:
    """Turn what the disk refuses (no room, read-only) into a SpecError that names the path."""
    try:
        yield
    except OSError as error:
        message = f"cannot be {done}: {(error.strerror or str(error)).lower()}"
        hint = "What is on disk is whole; render again when there is room and permission to write."
        raise SpecError(rules.CANNOT_WRITE.at(Span(path), message, hint=hint)) from None
