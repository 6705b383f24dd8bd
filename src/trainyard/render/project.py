"""A project: the folder with `templates/` and `profiles/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import UsageError

_MARKS = ("templates", "profiles")


class NoProject(UsageError):
    """Neither a folder nor any above it is a Trainyard project."""


@dataclass(frozen=True)
class Project:
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

    def shown(self, path: Path) -> str:
        """Return a path as messages show it: relative to the root if it is below it."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)


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
