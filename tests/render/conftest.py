"""A small project in a folder of its own, with the templates and profiles of this repository to change at will."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trainyard.render.project import Project

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def repository() -> Project:
    """The project that this repository is: read only."""
    return Project(REPOSITORY)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A copy of this repository's templates, profiles and settings files."""
    root = tmp_path / "project"
    for folder in ("templates", "profiles", "settings"):
        shutil.copytree(REPOSITORY / folder, root / folder)
    return Project(root)


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
