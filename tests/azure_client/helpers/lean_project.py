"""A copy of the project that the client is quick with: it lists `src` several times for every component it sends."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainyard.rehearse.snapshots import snapshot_of
from trainyard.spec.loading import load_job
from trainyard.spec.model import Component

ROOT = Path(__file__).resolve().parents[3]
_RENDERED = ("components", "compute", "environments", "pipelines")


def lean_project(folder: Path) -> Path:
    """Copy templates, profiles and what they render into a folder, and of `src` only what a job's snapshot takes."""
    for name in ("profiles", "settings", "templates", *_RENDERED):
        shutil.copytree(ROOT / name, folder / name)
    component = load_job(ROOT / "pipelines" / "ddp.yaml", strict=True).jobs["train_ddp"].component
    assert isinstance(component, Component)
    snapshot_of(component).copy_to(folder / "src")
    shutil.copy(ROOT / "src" / ".amlignore", folder / "src")
    return folder.resolve()
