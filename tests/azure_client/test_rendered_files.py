"""Microsoft's own client accepts the committed files, and what a setting adds to them.

What it makes of every file of every profile is in test_sent_bodies.py.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.snapshots import snapshot_of
from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.writing import write
from trainyard.spec.loading import load_job
from trainyard.spec.model import Component

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # The client warns of its own dealings with marshmallow, here as it is imported …
    import azure.ai.ml as azure_ml

# … and here as it is used.
pytestmark = pytest.mark.filterwarnings("ignore:The `context` parameter is deprecated")

PROJECT = Project(Path(__file__).resolve().parents[2])


def errors_of(loaded: Any) -> dict[str, str]:
    result = loaded._validate(raise_error=False)
    return {} if result.passed else dict(result.error_messages)


@pytest.mark.parametrize(
    ("pipeline", "settings"),
    [
        ("ddp", {"environment": "trainyard"}),
        ("ddp", {"spot": True, "nodes": 2}),
        ("ddp", {"pipelines.ddp.check_cluster_first": True}),
        ("ddp", {"pipelines.ddp.format": "folder", "pipelines.ddp.source": "src"}),
        ("ddp", {"pipelines.ddp.format": "folder", "pipelines.ddp.source": "azureml:images:1"}),
        ("ddp", {"pipelines.ddp.checkpoints_path": "azureml://datastores/workspaceblobstore/paths/trainyard/mine"}),
        ("fsdp", {"pipelines.fsdp.source": "docs", "pipelines.fsdp.cpu_offload": True}),
        ("deepspeed", {"pipelines.deepspeed.source": "azureml:text:1", "pipelines.deepspeed.maximum_perplexity": 80}),
    ],
    ids=str,
)
def test_what_settings_add_is_accepted_too(pipeline: str, settings: dict[str, object], tmp_path: Path) -> None:
    write(PROJECT, render(PROJECT, "t4", settings, tmp_path))
    job = azure_ml.load_job(tmp_path / "pipelines" / f"{pipeline}.yaml")
    assert errors_of(job) == {}
    job._to_rest_object()


def test_the_committed_files_are_accepted_where_they_lie() -> None:
    for file in sorted((PROJECT.root / "pipelines").glob("*.yaml")):
        assert errors_of(azure_ml.load_job(file)) == {}
    for file in sorted((PROJECT.root / "components").glob("*.yaml")):
        code = azure_ml.load_component(file).code
        assert Path(os.path.normpath(file.parent / code)) == PROJECT.root / "src"


def test_the_local_snapshot_holds_the_files_that_the_client_uploads() -> None:
    from azure.ai.ml._utils._asset_utils import get_ignore_file

    source = PROJECT.root / "src"
    ignored = get_ignore_file(source)
    files = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    uploaded = [path.relative_to(source).as_posix() for path in files if not ignored.is_file_excluded(path)]
    component = load_job(PROJECT.root / "pipelines" / "ddp.yaml", strict=True).jobs["train_ddp"].component
    assert isinstance(component, Component)
    assert [place for _, place in snapshot_of(component).files] == uploaded
    assert {"trainyard/settings/step_fields.py", "trainyard/steps/train_ddp.py"} <= set(uploaded)
    assert not any(name.startswith(("trainyard/lint/", "trainyard/cli/")) for name in uploaded)
