"""The moving average of weights: its values, and that it is what is evaluated and saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rank_processes import training_arguments
from safetensors.torch import load_file
from tiny_task import TinyTask

from trainyard.settings.steps.tasks import TaskSettings
from trainyard.steps import evaluate, train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.training.checkpoints.checkpoint_to_resume import step_folder
from trainyard.steps.training.models_without_weights import with_new_weights
from trainyard.steps.training.randomness import seed_everything

STEPS = 21


def train(data: Path, out: Path, *more: object) -> int:
    flags = ("--checkpoint-every-steps", 1, "--keep-checkpoints", 99, *more)
    return train_ddp.main([str(flag) for flag in training_arguments(data, out, "tiny_task:TinyTask", *flags)])


def saved_weights(out: Path, step: int, kind: str) -> dict[str, torch.Tensor]:
    """The weights in a checkpoint, `model` or `average`, flat, by name."""
    state = load_file(step_folder(out / "checkpoints", step) / "state-rank-00000.safetensors")
    prefix = f"{kind}/"
    return {name[len(prefix) : name.index("[")]: values for name, values in state.items() if name.startswith(prefix)}


def validation_loss(data: Path, out: Path) -> float:
    """What the evaluate step says of the saved model."""
    flags = ("--data", data, "--model", out / "model", "--evaluation", out / "evaluation", "--split", "validation")
    assert evaluate.main([str(flag) for flag in flags]) == 0
    return float(json.loads((out / "evaluation" / "evaluation.json").read_text())["loss"])


def test_the_average_is_evaluated_and_saved_and_does_not_change_the_training(digits: Path, tmp_path: Path) -> None:
    """The average is computed here from the weights of each step, with Python's own numbers."""
    plain, out = tmp_path / "plain", tmp_path / "averaged"
    assert train(digits, plain) == 0
    assert train(digits, out, "--ema-decay", 0.7, "--evaluate-every-steps", 8) == 0

    seed_everything(0)
    average = {
        name: values.double().flatten()
        for name, values in with_new_weights(TinyTask(read_manifest(digits), TaskSettings()).new_model)
        .state_dict()
        .items()
    }
    for step in range(1, STEPS + 1):
        decay = min(0.7, (1 + step) / (10 + step))
        weights = saved_weights(plain, step, "model")
        assert all(torch.equal(values, weights[name]) for name, values in saved_weights(out, step, "model").items())
        average = {name: decay * average[name] + (1 - decay) * weights[name] for name in average}
    found = load_file(out / "model" / "model.safetensors")
    for name, values in saved_weights(out, STEPS, "average").items():
        torch.testing.assert_close(values.double(), average[name], rtol=1e-5, atol=1e-7)
        assert torch.equal(found[name].flatten(), values)

    last_line = (out / "metrics" / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last_line)["validation_loss"] == pytest.approx(validation_loss(digits, out), rel=1e-6)
    assert validation_loss(digits, out) != pytest.approx(validation_loss(digits, plain), rel=1e-3)


def test_a_training_cannot_begin_to_average_in_its_middle(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(digits, tmp_path, "--max-steps", 3) == 0
    assert train(digits, tmp_path, "--ema-decay", 0.9) == 1
    assert "belongs to another training, with ema 'off' (now 'on')" in capsys.readouterr().err
