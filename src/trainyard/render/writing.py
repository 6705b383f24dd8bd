"""Writing rendered files: each atomically, and never over a file that Trainyard did not render."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.project_files import require_within, write_bytes
from trainyard.render import rules
from trainyard.render.copies import stale_copies
from trainyard.render.project import LOCK_FILE, Project
from trainyard.render.rendered_files import FileOnDisk, edited_by_hand, files_on_disk, record_written
from trainyard.render.rendering import Rendering
from trainyard.spec.diagnostic import Span, SpecError


@dataclass
class WriteReport:
    """What writing a rendering did.

    `saved` says where the text of replaced hand-edited files is now; `copies` counts the updated copies of Trainyard's
    own files.
    """

    project: Project
    profile: str
    written: list[Path] = field(default_factory=list)
    unchanged: list[Path] = field(default_factory=list)
    removed: list[Path] = field(default_factory=list)
    saved: dict[Path, Path] = field(default_factory=dict)
    copies: int = 0

    def lines(self) -> list[str]:
        """The report as lines of text: what was saved first, then every change, then a count."""
        shown = self.project.shown
        changes = [f"wrote {shown(path)}" for path in self.written]
        changes += [f"removed {shown(path)}: profile {self.profile} does not render this file" for path in self.removed]
        kept = [
            f"{shown(path)} was edited by hand; its text is kept in {shown(copy)}" for path, copy in self.saved.items()
        ]
        total = len(self.written) + len(self.unchanged)
        count = f"{self.profile}: {total} files, {len(self.written)} changed, {len(self.removed)} removed"
        updated = [f"updated {self.copies} copies of Trainyard's files (see {LOCK_FILE})"] if self.copies else []
        return [*kept, *changes, *updated, count]


def write(project: Project, rendering: Rendering) -> WriteReport:
    """Write what has changed, and remove rendered files that this rendering no longer has.

    Files that Trainyard did not render are never touched: if one is in the way nothing is written, and SpecError
    names it. A rendered file that was edited by hand is replaced after its text was saved in `.trainyard/replaced/`.
    No folder is left empty. Copies of Trainyard's own files are brought up to date. Raise SpecError if something cannot
    be written.
    """
    report = WriteReport(project, rendering.profile.name)
    on_disk = {found.path: found for found in files_on_disk(project, rendering.root)}
    _refuse_foreign_files(rendering, on_disk)
    old = {path: file.text for path, file in on_disk.items()}
    changed = [file for path, file in rendering.files.items() if old.get(path) != file.text]
    report.unchanged = [path for path, file in rendering.files.items() if old.get(path) == file.text]
    orphans = [found for path, found in on_disk.items() if path not in rendering.files]
    replaced = [*(on_disk[file.path] for file in changed if file.path in on_disk), *orphans]
    stale = stale_copies(project) if rendering.root == project.root else []
    by_hand = edited_by_hand(project, rendering.root, replaced)
    edited = {file.path: file.text.encode() for file in replaced if file.path in by_hand}
    edited |= {copy.path: copy.old for copy in stale if copy.is_edited and copy.old is not None}
    report.saved = _save(edited, project, rendering.root)
    for file in changed:
        replace_atomically(file.path, file.text.encode(), rendering.root)
        report.written.append(file.path)
    for orphan in orphans:
        _remove(orphan.path, rendering.root)
        report.removed.append(orphan.path)
    is_of_project = rendering.root.is_relative_to(project.root)  # one that cannot be written is rendered elsewhere
    with _explaining(project.record, "written") if is_of_project else contextlib.suppress(OSError):
        record_written(project, {path: file.text for path, file in rendering.files.items()}, report.removed)
    for copy in stale:
        if copy.new is None:
            _remove(copy.path, project.root)
        else:
            replace_atomically(copy.path, copy.new, project.root)
    report.copies = len(stale)
    return report


def replace_atomically(path: Path, content: bytes, root: Path) -> None:
    """Write a file below a root atomically, making its folder. Raise SpecError naming the path if that fails."""
    with _explaining(path, "written"):
        if path.parent.is_file():
            raise NotADirectoryError(errno.ENOTDIR, f"{path.parent.name} is a file, not a folder")
        write_bytes(path, content, root)


def _refuse_foreign_files(rendering: Rendering, on_disk: dict[Path, FileOnDisk]) -> None:
    foreign = [path for path in rendering.files if path not in on_disk and (path.exists() or path.is_symlink())]
    if foreign:
        message = "not rendered by Trainyard, so it was not overwritten"
        hint = "Move or delete the file, then render again; nothing was written."
        raise SpecError([rules.NOT_OURS.at(Span(path), message, hint=hint) for path in foreign])


def _save(contents: Mapping[Path, bytes], project: Project, root: Path) -> dict[Path, Path]:
    """Keep content that is about to be replaced in a new numbered folder; return where each went."""
    if not contents:
        return {}
    with _explaining(project.replaced, "written"):
        require_within(project.replaced, project.root)
        project.replaced.mkdir(parents=True, exist_ok=True)
        numbers = [int(folder.name) for folder in project.replaced.iterdir() if folder.name.isdecimal()]
    folder = project.replaced / str(max(numbers, default=0) + 1)
    saved = {path: folder / path.relative_to(root) for path in contents}
    for path, content in contents.items():
        replace_atomically(saved[path], content, project.root)
    return saved


def _remove(path: Path, root: Path) -> None:
    with _explaining(path, "removed"):
        require_within(path, root)
        path.unlink()
    for folder in path.parents:
        if folder == root or any(folder.iterdir()):
            break
        with _explaining(folder, "removed"):
            folder.rmdir()


@contextlib.contextmanager
def _explaining(path: Path, done: str) -> Iterator[None]:
    """Turn an error of the file system (no space, read-only) into a SpecError that names the path."""
    try:
        yield
    except OSError as error:
        message = f"cannot be {done}: {(error.strerror or str(error)).lower()}"
        hint = "No file is left half-written; try again once there is space and permission to write."
        raise SpecError(rules.CANNOT_WRITE.at(Span(path), message, hint=hint)) from None
