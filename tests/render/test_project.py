from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.render.project import NoProject, Project, find_project


def test_a_project_is_found_from_any_folder_inside_it(project: Project) -> None:
    assert find_project(project.root) == project
    assert find_project(project.templates / "components") == project


def test_outside_of_every_project_the_error_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(NoProject, match="both templates/ and profiles/"):
        find_project(tmp_path)


def test_paths_are_shown_from_the_root_on(project: Project) -> None:
    assert project.shown(project.templates / "x.j2") == "templates/x.j2"
    assert project.shown(Path("/elsewhere/x")) == "/elsewhere/x"
