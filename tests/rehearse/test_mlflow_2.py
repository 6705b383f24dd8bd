"""Jobs that log with MLflow 2, which reads more of a run's record than MLflow 3 does. Needs a Python that has it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("MLFLOW_2_PYTHON", "")
LOG = """\
import mlflow

with mlflow.start_run() as run:
    mlflow.log_param("lr", 0.1)
    for step in range(3):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
    mlflow.log_text("hello", "note.txt")
names = [experiment.name for experiment in mlflow.search_experiments()]
print(mlflow.__version__.split(".")[0], names, mlflow.get_run(run.info.run_id).data.params)
"""


@pytest.mark.skipif(not PYTHON, reason="MLFLOW_2_PYTHON names no Python that has MLflow 2")
def test_a_job_logs_with_mlflow_2(workspace: Any) -> None:
    (workspace.code / "log.py").write_text(LOG)

    record = workspace.run(workspace.one_job("python log.py"), python=Path(PYTHON))

    job = record.jobs["work"]
    assert record.status == "completed", job.error_lines
    *_, printed = (record.folder / job.logs[0]).read_text().splitlines()
    assert printed == "2 ['demo', 'Default'] {'lr': '0.1'}"
    tracked = record.folder / str(job.tracking)
    assert len((tracked / "metrics" / "loss").read_text().splitlines()) == 3
    assert (tracked / "artifacts" / "note.txt").read_text() == "hello"
