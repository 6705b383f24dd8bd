"""A project: the folder with `templates/` and `profiles/`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trainyard.errors import UsageError
from trainyard.resources import STEP_ARCHIVE

LOCK_FILE = "trainyard.lock"
"""What names the version of the files that a project has copies of."""

_MARKS = ("templates", "profiles")


class NoProject(UsageError):
    """Neither a folder nor any above it is a Trainyard project."""


class Project(NamedTuple):
    """A folder with templates and profiles; `root` is absolute."""

    root: Path

    @property
    def templates(self) -> Path:
        """The folder of the Jinja templates."""
        return self.root / "templates"

    @property
    def profiles(self) -> Path:
        """The folder of the profiles."""
        return self.root / "profiles"

    @property
    def source(self) -> Path:
        """The folder of the steps' code, which is a component's snapshot."""
        return self.root / "src"

    @property
    def record(self) -> Path:
        """The file where rendering notes what it wrote, so that hand edits can be distinguished."""
        return self.root / ".trainyard" / "rendered.json"

    @property
    def replaced(self) -> Path:
        """The folder where rendering keeps the text of hand-edited files that it replaces."""
        return self.root / ".trainyard" / "replaced"

    @property
    def released(self) -> Path:
        """The list of templates, one a line, whose files people write themselves from now on."""
        return self.templates / ".released"

    def shown(self, path: Path) -> str:
        """Return a path as messages show it: relative to the root if it is below it."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)


def python_of(source: Path) -> str:
    """Return what starts Python in a job whose snapshot is the `src/` of a project: with the archive, where it has one.

    Modules of the project itself need no path: `python -m` looks in the working directory, the snapshot, first.
    """
    has_archive = (source / STEP_ARCHIVE).exists() or (source.parent / LOCK_FILE).exists()
    return f'PYTHONPATH="{STEP_ARCHIVE}:$PYTHONPATH" python' if has_archive else "python"


def find_project(start: Path) -> Project:
    """Return the project that a folder belongs to: the folder itself or the nearest above. Raise NoProject."""
    resolved = start.resolve()
    for folder in (resolved, *resolved.parents):
        if all((folder / mark).is_dir() for mark in _MARKS):
            return Project(folder)
    raise NoProject(
        f"not in a Trainyard project: neither {start} nor a folder above it has both templates/ and profiles/. "
        "`trainyard init NAME` starts one."
    )
