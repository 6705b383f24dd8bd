"""Trainings with TensorFlow: the order of the other train steps, exact resume, exact evaluation, a SavedModel."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_processes import LIMIT_SECONDS, Ranks
from safetensors.numpy import load_file
from tensorflow_tasks import arguments_for, needs_tensorflow, start_tasks

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.steps import train_tensorflow
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.sample_order import SampleOrder
from trainyard.steps.training.samples.plan import TrainingPlan

pytestmark = needs_tensorflow

OWN_WORKER = "trainyard.steps.training.tensorflow.parameter_server"
"""The module that worker 0 runs in a child."""


def evaluation(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "evaluation" / "evaluation.json").read_text())
    return document


def newest_state(out: Path) -> dict[str, Any]:
    state: dict[str, Any] = load_file(max((out / "checkpoints").glob("step-*")) / "variables.safetensors")
    return state


def require_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name].tobytes() != expected[name].tobytes()] == []


@pytest.mark.slow
def test_two_workers_learn_and_a_killed_training_ends_with_the_same_bits(digits: Path, tmp_path: Path) -> None:
    """In the order of the other train steps, and with dropout and BatchNormalization."""
    flags: list[object] = ["--keras-model=keras_models:with_dropout", "--epochs=8", "--checkpoint-every-steps=10"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    ranks = start_tasks(digits, whole, *flags, f"--record-samples={tmp_path / 'samples'}")
    assert ranks.wait() == [0, 0], ranks.outputs
    samples = read_manifest(digits).splits["test"].samples
    assert evaluation(whole)["accuracy"] >= 0.97
    assert evaluation(whole)["samples"] == samples
    matrix = json.loads((whole / "evaluation" / "confusion_matrix.json").read_text())["matrix"]
    assert np.sum(matrix) == samples

    plan = TrainingPlan(read_manifest(digits).splits["train"].samples, divide_batch(64, 32, 2), 8)
    for rank in range(2):
        lines = [json.loads(line) for line in (tmp_path / f"samples/rank-{rank:05d}.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, plan.total_steps + 1))
        for line in lines[::7]:
            step = plan.step(line["step"])
            order = SampleOrder(plan.samples, 0, step.epoch)
            ranges = plan.micro_batches(step, rank)
            assert line["sample_ids"] == [
                n for each in ranges for n in order.sample_ids(each.start, each.stop).tolist()
            ]

    ranks = start_tasks(digits, killed, *flags)
    wait_for_a_checkpoint(killed, ranks)
    ranks.signal(1, signal.SIGKILL)
    assert ranks.wait() == [1, -signal.SIGKILL]
    assert "worker 1" in ranks.outputs[0]
    assert "has ended before the training did" in ranks.outputs[0]
    ranks = start_tasks(digits, killed, *flags)
    assert ranks.wait() == [0, 0], ranks.outputs
    assert "continuing from" in ranks.outputs[0]
    require_equal(newest_state(killed), newest_state(whole))
    assert evaluation(killed) == evaluation(whole)


def wait_for_a_checkpoint(out: Path, ranks: Ranks) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not any((out / "checkpoints").glob("step-*/commit.json")) and ranks.processes[0].poll() is None:
        if time.monotonic() > deadline:
            ranks.kill()
            raise AssertionError(f"no checkpoint within {LIMIT_SECONDS} seconds")
        time.sleep(0.05)


def own_worker(process: int) -> int:
    """The child that is TensorFlow's worker 0. There may be others for a moment, started by what is imported."""
    file, deadline = Path(f"/proc/{process}/task/{process}/children"), time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        for child in file.read_text().split():
            with suppress(FileNotFoundError):
                if OWN_WORKER.encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        time.sleep(0.05)
    raise AssertionError(f"no worker of its own within {LIMIT_SECONDS} seconds")


@pytest.mark.slow
def test_parameter_servers_stop_resume_and_end_with_the_training(digits: Path, tmp_path: Path) -> None:
    """Any task may be asked to stop. Worker 0's child outlives that, and its death is noticed."""
    flags = ("--strategy=parameter_server", "--epochs=4", "--verify-data=digests", "--checkpoint-every-steps=5")
    ranks = start_tasks(digits, tmp_path, *flags, servers=1)
    wait_for_a_checkpoint(tmp_path, ranks)
    os.kill(own_worker(ranks.processes[0].pid), signal.SIGTERM)  # as it comes with one for the whole process group
    ranks.signal(2, signal.SIGTERM)
    assert ranks.wait() == [75, 75, 75], ranks.outputs
    assert "because of SIGTERM on parameter server 0" in ranks.outputs[0]

    ranks = start_tasks(digits, tmp_path, *flags, servers=1)
    os.kill(own_worker(ranks.processes[0].pid), signal.SIGKILL)
    assert ranks.wait() == [1, 1, 1], ranks.outputs
    assert "a child of this one, ended with SIGKILL before the training did" in ranks.outputs[0]

    ranks = start_tasks(digits, tmp_path, *flags, servers=1)
    assert ranks.wait() == [0, 0, 0], ranks.outputs
    assert "verified every byte of the dataset" in ranks.outputs[0]
    assert "continuing from" in ranks.outputs[0]
    assert evaluation(tmp_path)["accuracy"] >= 0.9
    assert evaluation(tmp_path)["samples"] == read_manifest(digits).splits["test"].samples
    assert (tmp_path / "model" / "saved_model.pb").is_file()


def train(data: Path, out: Path, *flags: object) -> int:
    return train_tensorflow.main(arguments_for(data, out, *flags))


def test_a_stopped_training_continues_and_a_compiled_model_keeps_its_optimizer(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--keras-model=keras_models:compiled", "--max-steps=30", "--micro-batch-size=16")
    stop_file = tmp_path / "stop"
    stop_file.touch()
    assert train(digits, tmp_path, *flags, f"--stop-file={stop_file}") == 75
    assert "stopped after step 1 of 30 because of the file" in capsys.readouterr().out
    assert train(digits, tmp_path, *flags, "--minimum-accuracy=0.5") == 0
    said = capsys.readouterr().out
    assert "continuing from" in said
    assert "outputs differ by at most" in said
    names = [name.rpartition("/")[2] for name in newest_state(tmp_path)]
    assert not any("velocity" in name for name in names), "it is SGD, not AdamW"
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 21, 30]
    assert {line["learning_rate"] for line in lines} == {0.5}, "the rate of its own optimizer"
    settings = json.loads((tmp_path / "metrics" / "settings.json").read_text())
    assert (settings["step"], settings["world_size"]) == ("train_tensorflow", 1)
    assert train(digits, tmp_path, *flags, "--seed=1") == 1
    assert "belongs to another training, with seed 0 (now 1)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "exit_code", "message"),
    [
        (["--keras-model=keras_models"], 2, "expected package.module:function"),
        (["--keras-model=nowhere:model"], 2, "the module nowhere is missing"),
        (["--keras-model=keras_models:absent"], 2, "keras_models has no function absent"),
        (["--keras-model=keras_models:not_a_model"], 1, "returned str; expected a keras.Model"),
        (
            ["--keras-model=keras_models:one_output"],
            1,
            "outputs of the shape (None, 1); expected (None, 10), one number",
        ),
        (["--keras-model-arguments={}"], 2, "without --keras-model"),
        (["--keras-model=keras_models:compiled", "--keras-model-arguments={"], 2, "is not valid JSON"),
        (["--keras-model=keras_models:compiled", '--keras-model-arguments={"a": 1}'], 1, "unexpected keyword argument"),
        (["--strategy=parameter_server"], 2, "needs parameter servers, and TF_CONFIG has none"),
        (["--micro-batch-size=48"], 1, "global_batch_size 64 is not a multiple of micro_batch_size 48"),
        (["--evaluate-split=exam"], 1, "has no split 'exam'"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(
    flags: list[str], exit_code: int, message: str, digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(digits, tmp_path, *flags) == exit_code
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "train_tensorflow: error:" in line]
    assert message in line


def test_the_step_needs_no_torch(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's images have none."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainyard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    from trainyard.steps import train_tensorflow as fresh

    assert fresh.main(arguments_for(digits, tmp_path, "--max-steps=1")) == 0
