"""The store that we write, held against the real MLflow client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.errors import RunError
from trainyard.rehearse.tracking_store import TrackingStore

LOGGING = """
import mlflow
with mlflow.start_run() as run:
    mlflow.log_param("epochs", 3)
    for step in range(5):
        mlflow.log_metric("loss", 1.0 / (step + 1), step=step)
"""


@pytest.fixture
def client(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    return MlflowClient(
        tracking_uri=TrackingStore(workspace.root / ".trainyard" / "mlruns").identity("any", "any").tracking_uri
    )


@pytest.mark.timeout(60)
def test_a_step_logs_to_the_run_that_was_made_for_it(workspace: Any, client: Any) -> None:
    (workspace.code / "log.py").write_text(LOGGING)
    component = workspace.component("worker", "python log.py")
    file = workspace.pipeline({"work": {"component": component}}, experiment_name="my digits: 1")

    record = workspace.run(file)

    assert record.status == "completed", record.jobs["work"].error_lines
    experiment = client.get_experiment_by_name("my digits: 1")
    assert (
        experiment.experiment_id
        == TrackingStore(workspace.root / "mlruns").identity("my digits: 1", "any").experiment_id
    )
    runs = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {record.id, f"{record.id}_work"}
    run = runs[f"{record.id}_work"]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "work"
    assert run.data.params == {"epochs": "3"}
    assert run.data.metrics == {"loss": 0.2}
    assert run.data.tags["mlflow.parentRunId"] == record.id
    assert len(client.get_metric_history(run.info.run_id, "loss")) == 5
    assert (runs[record.id].info.run_name, runs[record.id].info.status) == (record.name, "FINISHED")
    assert run.info.end_time >= run.info.start_time


def test_the_status_follows_how_the_job_ended(workspace: Any, client: Any) -> None:
    record = workspace.run(workspace.one_job("exit 1"))

    assert client.get_run(f"{record.id}_work").info.status == "FAILED"
    assert client.get_run(record.id).info.status == "FAILED"


@pytest.mark.timeout(60)
def test_a_name_used_again_does_not_mix_what_two_runs_log(workspace: Any, client: Any, tmp_path: Path) -> None:
    (workspace.code / "log.py").write_text(LOGGING.replace("range(5)", "range(int(__import__('os').environ['STEPS']))"))
    component = workspace.component("worker", "python log.py")

    counts = []
    for steps in (4, 2):
        jobs = {"work": {"component": component, "environment_variables": {"STEPS": str(steps)}}}
        record = workspace.run(workspace.pipeline(jobs), run_folder=tmp_path / f"{steps}-steps" / "run")
        assert record.name == "run"
        counts.append(len(client.get_metric_history(f"{record.id}_work", "loss")))

    assert counts == [4, 2]


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "mlruns").write_text("a file")
    store = TrackingStore(tmp_path / "mlruns")

    with pytest.raises(RunError, match="mlruns: cannot be written"):
        store.start_run(store.identity("x", "run"), "run")


def test_the_authors_side_does_not_import_mlflow() -> None:
    source = str(Path(__file__).parents[2] / "src")
    code = f"import sys; sys.path.insert(0, {source!r}); import trainyard.rehearse.runner; "
    code += "sys.exit(any(name in sys.modules for name in ('mlflow', 'rich', 'torch', 'pathspec', 'asyncio')))"

    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0


def test_mlflow_takes_the_runs_of_jobs_in_nested_pipelines(workspace: Any, client: Any) -> None:
    store = TrackingStore(workspace.root / ".trainyard" / "mlruns")
    run = store.identity("any", "run-1").of_job("inner.train")
    store.start_run(run, "inner.train")

    client.log_metric(run.run_id, "loss", 0.5)

    assert client.get_run(run.run_id).data.metrics == {"loss": 0.5}
