"""The project that the working directory belongs to, and where its runs are kept."""

from __future__ import annotations

from pathlib import Path

from trainyard import project_files
from trainyard.render.project import NoProject, Project, find_project


def project() -> Project:
    """Return the project of the working directory; raise NoProject outside one."""
    return find_project(Path.cwd())


def private_folder() -> Path:
    """Return the folder of everything that Trainyard keeps: in the project, or in the working directory outside one."""
    try:
        root = project().root
    except NoProject:
        root = Path.cwd()
    return root / ".trainyard"


def runs_folder() -> Path:
    """Return the folder of all runs."""
    return private_folder() / "runs"


def keep_out_of_git() -> None:
    """Make the private folder ignore itself, so that git takes nothing of it, whatever the repository ignores."""
    project_files.keep_out_of_git(private_folder())


def template_of(file: Path) -> Path | None:
    """Return the template that a file is rendered from, as users would type it; None outside a project or without."""
    try:
        here = project()
        template = here.templates / f"{file.absolute().relative_to(here.root)}.j2"
    except (NoProject, ValueError):
        return None
    return Path(here.shown(template)) if template.is_file() else None


def has_profile(name: str) -> bool:
    """Return whether there is a project here with a profile of this name."""
    try:
        here = project()
    except NoProject:
        return False
    from trainyard.render.profiles import profile_names  # which takes 60 ms to import

    return name in profile_names(here)
