"""The project that the working directory belongs to, and where its runs are kept."""

from __future__ import annotations

from pathlib import Path

from trainyard.author.project import NoProject, Project, find_project


def project() -> Project:
    """Return the project of the working directory; raise NoProject outside one."""
    return find_project(Path.cwd())


def runs_folder() -> Path:
    """Return the folder of all runs: in the project, or in the working directory outside one."""
    try:
        root = project().root
    except NoProject:
        root = Path.cwd()
    return root / ".trainyard" / "runs"
