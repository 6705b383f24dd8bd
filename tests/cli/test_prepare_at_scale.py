"""The pipeline that prepares on Spark, on this machine: spark-submit starts the step, and a training reads from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.cli import working_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_prepare_on_spark_train_and_evaluate(
    trainyard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: make setup-spark")
    monkeypatch.setattr(working_folder, "runs_folder", lambda run_folder=None: tmp_path)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(40):
        (source / f"{number:02}.txt").write_text(" ".join(f"word{number * word % 97}" for word in range(200)))
    (source / "copy.txt").write_bytes((source / "07.txt").read_bytes())
    settings = ("inputs.epochs=1", "inputs.vocabulary_size=300", f"jobs.prepare_text_spark.inputs.source={source}")
    flags = [part for setting in settings for part in ("--set", setting)]

    ended = trainyard("run", "pipelines/prepare_at_scale.yaml", "--profile", "local", "--name", "run", *flags)
    assert ended.exit_code == 0, ended.stderr
    jobs = tmp_path / "run" / "jobs"
    prepared = jobs / "prepare_text_spark" / "outputs" / "prepared"
    assert json.loads((prepared / "duplicates.json").read_bytes())["dropped"]["exact"] == 1
    assert (jobs / "train_fsdp" / "outputs" / "model" / "model.safetensors").is_file()
    assert (jobs / "evaluate" / "outputs" / "evaluation" / "evaluation.json").is_file()
