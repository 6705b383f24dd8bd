"""A small project in a folder of its own, with the templates and profiles of this repository to change at will."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.writing import write

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def repository() -> Project:
    """The project that this repository is: read only."""
    return Project(REPOSITORY)


def copy_of_project(folder: Path) -> Project:
    """A copy of this repository's templates, profiles and settings files in a new folder."""
    for part in ("templates", "profiles", "settings"):
        shutil.copytree(REPOSITORY / part, folder / part)
    return Project(folder)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A copy of this repository's templates, profiles and settings files."""
    return copy_of_project(tmp_path / "project")


@pytest.fixture(scope="session")
def rendered_once(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Such a copy, rendered for t4. Not to be changed: `rendered` is a copy of it."""
    project = copy_of_project(tmp_path_factory.mktemp("rendered") / "project")
    write(project, render(project, "t4"))
    return project


@pytest.fixture
def rendered(rendered_once: Project, tmp_path: Path) -> Project:
    """A project rendered for t4, to change at will."""
    return Project(Path(shutil.copytree(rendered_once.root, tmp_path / "project")))


@pytest.fixture
def small_project(tmp_path: Path) -> Project:
    """One profile and no templates yet: tests write their own."""
    root = tmp_path / "small"
    (root / "templates" / "notes").mkdir(parents=True)
    (root / "profiles").mkdir()
    (root / "profiles" / "base.yaml").write_text(
        "description: a machine\n"
        "cluster: my-cluster\n"
        "nodes: 2\n"
        "processes_per_node: 3\n"
        "precision: fp32\n"
        "shm_size: 2g\n"
        "environment: azureml:env:1\n"
    )
    return Project(root)
