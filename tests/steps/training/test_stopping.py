"""Requests to stop, of any kind and at any time: a checkpoint, exit code 75, and the same bits in the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import forked_ranks
from rank_processes import clean_environment, training_arguments
from safetensors.torch import load_file

from trainyard.steps import prepare_images, train_ddp
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders
from trainyard.steps.training.checkpoints.checkpoints import Checkpoints


def train(data: Path, out: Path, task: str, *more: object) -> int:
    return train_ddp.main([str(argument) for argument in training_arguments(data, out, task, *more)])


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]


def test_sigterm_while_starting_stops_before_the_first_step(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(digits, tmp_path, "disturbed_tasks:ToldToStopWhileStarting") == 75
    said = capsys.readouterr().out
    assert "stopped before the first step because of SIGTERM; run the same command again to start" in said
    assert checkpoint_folders(tmp_path / "checkpoints") == []
    assert metrics(tmp_path) == []


TOLD_TO_STOP_WHILE_TORCH_IS_IMPORTED = """
import signal, sys

class SignalAtImport:
    def find_spec(self, name, *_):
        if name == "torch":
            signal.raise_signal(signal.SIGTERM)

sys.meta_path.insert(0, SignalAtImport())
from trainyard.steps import train_ddp
from trainyard.steps.runtime import entrypoint
entrypoint.end_process(train_ddp.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_sigterm_while_torch_is_imported_stops_the_training(digits: Path, tmp_path: Path) -> None:
    arguments = [str(argument) for argument in training_arguments(digits, tmp_path)]
    command = [sys.executable, "-c", TOLD_TO_STOP_WHILE_TORCH_IS_IMPORTED, *arguments]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 75, done.stderr
    assert "stopped before the first step because of SIGTERM" in done.stdout


@pytest.mark.parametrize(("evaluation", "step"), [(1, 21), (2, 42)], ids=["between epochs", "at the very end"])
def test_sigterm_while_evaluating_leaves_the_evaluation_to_the_next_attempt(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluation: int, step: int
) -> None:
    import disturbed_tasks

    task, flags = "disturbed_tasks:ToldToStopWhileEvaluating", ("--epochs", 2, "--micro-batch-size", 16)
    assert train(digits, tmp_path / "whole", task, *flags) == 0

    monkeypatch.setenv("STOP_IN_EVALUATION", str(evaluation))
    disturbed_tasks.ToldToStopWhileEvaluating.evaluations = 0
    disturbed_tasks.ToldToStopWhileEvaluating.evaluated_batches = 0
    assert train(digits, tmp_path / "cut", task, *flags) == 75
    assert disturbed_tasks.ToldToStopWhileEvaluating.evaluated_batches == 10 * (evaluation - 1) + 2
    assert checkpoint_folders(tmp_path / "cut" / "checkpoints")[0].name == f"step-{step:08d}"
    assert "validation_loss" not in metrics(tmp_path / "cut")[-1]

    monkeypatch.delenv("STOP_IN_EVALUATION")
    assert train(digits, tmp_path / "cut", task, *flags) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))

    def validations(out: Path) -> list[tuple[int, float, float]]:
        lines = [line for line in metrics(out) if "validation_loss" in line]
        return [(line["step"], line["loss"], line["validation_loss"]) for line in lines]

    assert validations(tmp_path / "cut") == validations(tmp_path / "whole")


def test_sigterm_while_saving(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save, flags = Checkpoints.save, ("--micro-batch-size", 64)

    def save_and_be_told(checkpoints: Checkpoints, *arguments: Any, **more: Any) -> None:
        save(checkpoints, *arguments, **more)
        signal.raise_signal(signal.SIGTERM)

    assert train(digits, tmp_path / "whole", "tiny_task:Slow", *flags) == 0
    monkeypatch.setattr(Checkpoints, "save", save_and_be_told)
    assert train(digits, tmp_path / "cut", "tiny_task:Slow", *flags, "--checkpoint-every-steps", 5) == 75
    monkeypatch.undo()
    assert "stopped after step 7 of 21 because of SIGTERM" in capsys.readouterr().out
    assert checkpoint_folders(tmp_path / "cut" / "checkpoints")[0].name == "step-00000007"
    assert train(digits, tmp_path / "cut", "tiny_task:Slow", *flags) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "cut"))


def test_sigterm_in_the_last_step_completes_a_training_without_validation(tmp_path: Path) -> None:
    """Nothing but the model is left to write, and it is written."""
    data, out = tmp_path / "data", tmp_path / "out"
    assert prepare_images.main(["--prepared", str(data), "--validation-fraction", "0"]) == 0
    flags = ("--micro-batch-size", 64, "--max-steps", 21)
    assert train(data, out, "disturbed_tasks:ToldToStopInTheLastStep", *flags) == 0
    assert weights(out)
    assert metrics(out)[-1]["step"] == 21


def test_a_time_limit(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--epochs", 50, "--time-limit-seconds", 2)
    assert train(digits, tmp_path, "tiny_task:Slow", *flags) == 75
    assert "because of the time limit of 2 seconds; its checkpoint is committed" in capsys.readouterr().out
    assert json.loads((checkpoint_folders(tmp_path / "checkpoints")[0] / "commit.json").read_text())["step"] > 1


@pytest.mark.slow
def test_sigterm_to_one_rank_while_all_evaluate(digits: Path, tmp_path: Path) -> None:
    """Both ranks get the signal at different batches, and leave the evaluation together."""
    task, flags = "disturbed_tasks:ToldToStopWhileEvaluating", ("--micro-batch-size", 16)
    arguments = training_arguments(digits, tmp_path, task, *flags)
    exit_codes, outputs = forked_ranks().run("train_ddp", arguments, 2, environment={"STOP_IN_EVALUATION": "1"})
    assert exit_codes == [75, 75], outputs
    assert "stopped after step 21 of 21 because of SIGTERM" in outputs[0]
