"""MLflow with a real file store; a broken store does not end a training."""

from __future__ import annotations

import json
import shutil
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rank_processes import training_arguments

from trainyard.steps import train_ddp
from trainyard.steps.runtime.world import World
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.training.observing.recorder import Recorder, StepLines


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "spine")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return tmp_path / "mlruns"


def test_a_training_is_in_the_store(digits: Path, tmp_path: Path, store: Path) -> None:
    from mlflow.tracking import MlflowClient

    arguments = training_arguments(digits, tmp_path, "tiny_task:TinyTask", "--log-every-steps", 7)
    assert train_ddp.main([str(argument) for argument in arguments]) == 0
    client = MlflowClient()
    experiment = client.get_experiment_by_name("spine")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["global_batch_size"] == "64"
    assert run.data.params.keys().isdisjoint({"data", "model", "resume", "settings"})
    (artifact,) = client.list_artifacts(run.info.run_id)
    assert artifact.path == "settings.json"
    history = client.get_metric_history(run.info.run_id, "loss")
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [(entry.step, entry.value) for entry in history] == [(line["step"], line["loss"]) for line in lines]


def test_an_existing_run_is_used_and_not_ended(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    run = client.create_run(client.create_experiment("given"))
    monkeypatch.setenv("MLFLOW_RUN_ID", run.info.run_id)
    log = MlflowLog()
    log.metrics({"accuracy": 0.5, "loss": float("nan")}, step=3)
    log.close()
    logged = client.get_run(run.info.run_id)
    assert logged.data.metrics == {"accuracy": 0.5}
    assert logged.info.status == "RUNNING"


def test_a_resumed_training_logs_each_step_once_whatever_its_parameters_are(
    digits: Path, tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    run_id = client.create_run(client.create_experiment("given")).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    flags = ("--log-every-steps", 1, "--checkpoint-every-steps", 2, "--learning-rate", 0.001)
    first = training_arguments(digits, tmp_path, "tiny_task:TinyTask", *flags, "--max-steps", 4)
    assert train_ddp.main([str(argument) for argument in first]) == 0
    # As if it had been killed in its last step: steps 3 and 4 are logged, the checkpoint is of step 2.
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000004")
    moved = tmp_path / "elsewhere"
    second = training_arguments(digits, tmp_path, "tiny_task:TinyTask", *flags, "--max-steps", 6)
    second[second.index("--model") + 1] = moved
    assert train_ddp.main([str(argument) for argument in second]) == 0
    assert [entry.step for entry in client.get_metric_history(run_id, "loss")] == [1, 2, 3, 4, 5, 6]
    said = capsys.readouterr().out
    assert said.count("MLflow: the run keeps the parameters of an earlier attempt: max_steps=4 (now 6)\n") == 1
    assert not any(str(tmp_path) in value for value in client.get_run(run_id).data.params.values())


def test_figures_that_an_attempt_had_no_time_to_log_are_logged_by_the_next(
    digits: Path, tmp_path: Path, store: Path
) -> None:
    from mlflow.tracking import MlflowClient

    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null}\n')
    recorder = Recorder(cast("World", SimpleNamespace(is_main=True)), tmp_path / "metrics", 1, 3)
    recorder.begin(2, {}, {})
    recorder.complete()
    recorder.close()
    (run,) = MlflowClient().search_runs([MlflowClient().get_experiment_by_name("spine").experiment_id])
    assert [(entry.step, entry.value) for entry in MlflowClient().get_metric_history(run.info.run_id, "loss")] == [
        (1, 2.5)
    ]


def test_a_broken_store_does_not_end_the_training(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "file" / "mlruns").as_uri())
    assert train_ddp.main([str(argument) for argument in training_arguments(digits, tmp_path)]) == 0
    assert "MLflow: no more logging: " in capsys.readouterr().out


def test_nothing_is_logged_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    log = MlflowLog()
    assert nothing_is_kept_by(log)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_nothing_accumulates_after_the_store_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "file" / "mlruns").as_uri())
    log = MlflowLog()
    log.metrics({"loss": 1.0}, step=1)
    end = time.monotonic() + 60
    while any(thread.name == "mlflow" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert nothing_is_kept_by(log)


def nothing_is_kept_by(log: MlflowLog) -> bool:
    class Value:
        pass

    value = Value()
    kept = weakref.ref(value)
    log.parameters({"anything": value})
    del value
    return kept() is None


def test_a_training_that_fails_while_starting_closes_what_it_opened(
    digits: Path, tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow.tracking import MlflowClient

    (tmp_path / "samples").write_text("in the way")
    arguments = training_arguments(digits, tmp_path, "tiny_task:TinyTask", "--record-samples", tmp_path / "samples")
    assert train_ddp.main([str(argument) for argument in arguments]) == 1
    assert f"{tmp_path}/samples: file exists" in capsys.readouterr().err
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("spine").experiment_id])
    assert run.info.status == "FAILED"
    assert not {"batches", "mlflow"} & {thread.name for thread in threading.enumerate()}


def test_a_resumed_training_continues_its_metrics_after_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"step": step}) + "\n" for step in range(1, 6))
    (tmp_path / "metrics.jsonl").write_text(lines + '{"step": 3, "lo')
    metrics = StepLines(tmp_path / "metrics.jsonl", steps_done=3)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'
    metrics.remove_last_line()
    metrics.write({"step": 3, "validation_loss": 0.5})
    metrics.close()
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 1}\n{"step": 2}\n{"step": 3, "validation_loss": 0.5}\n'
    )


def test_a_full_disk_under_the_metrics_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    metrics = StepLines(tmp_path / "metrics.jsonl", steps_done=0)
    for step in (1, 2):
        metrics.write({"step": step})
    metrics.close()
    assert capsys.readouterr().out.count("metrics.jsonl, and the training continues without: ") == 1
