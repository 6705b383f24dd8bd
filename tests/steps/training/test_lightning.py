"""Training with Lightning: the losses of the other engines, the same resume, and LightningModules of users."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path

import pytest
import torch
from engines_to_resume import LIGHTNING
from forked_ranks import RankServer
from killing import LightningTraining, Training, kill_until
from rank_processes import run_ranks, training_arguments
from safetensors.torch import load_file

from trainyard.steps.training.checkpoints.folders import checkpoint_folders

OWN = ("--module", "lightning_modules:Digits")


def train(step: str, data: Path, out: Path, *flags: object, task: str = "tiny_task:WithoutDropout") -> int:
    """Train in this process, alone."""
    arguments = [str(argument) for argument in training_arguments(data, out, task, *flags)]
    exit_code: int = importlib.import_module(f"trainyard.steps.{step}").main(arguments)
    return exit_code


def lines(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.slow
def test_fifty_losses_agree_with_ddp_alone(digits: Path, tmp_path: Path) -> None:
    """Two ranks in micro-batches; each epoch's last step has 13 samples only."""
    batches = ("--global-batch-size", 64, "--log-every-steps", 1, "--max-steps", 50)
    flags = (*batches, "--epochs", 3)
    assert train("train_ddp", digits, tmp_path / "ddp", *flags, "--micro-batch-size", 64) == 0
    arguments = training_arguments(
        digits, tmp_path / "lightning", "tiny_task:WithoutDropout", *flags, "--micro-batch-size", 16
    )
    exit_codes, outputs = run_ranks("train_lightning", arguments, 2)
    assert exit_codes == [0, 0], outputs
    assert outputs[1] == "", "only rank 0 speaks"
    expected, found = lines(tmp_path / "ddp"), lines(tmp_path / "lightning")
    assert len(found) == len(expected) == 50
    for one, other in zip(found, expected, strict=True):
        for name in ("loss", "grad_norm", "learning_rate"):
            assert one[name] == pytest.approx(other[name], rel=1e-4)
    (one, other) = (
        [line["validation_loss"] for line in each if "validation_loss" in line] for each in (found, expected)
    )
    assert one == pytest.approx(other, rel=1e-4)
    assert len(one) == 3


@pytest.mark.slow
def test_a_killed_training_ends_with_the_bits_of_an_uninterrupted_one(digits: Path, tmp_path: Path) -> None:
    with RankServer(with_lightning=True) as server:

        def new_training(name: str) -> Training:
            return LightningTraining(server, LIGHTNING.step, digits, tmp_path / name, LIGHTNING.flags(tmp_path))

        kill_until(new_training, 3, random.Random(3), print)


def test_a_module_of_the_user_trains_validates_and_resumes_to_the_same_bits(digits: Path, tmp_path: Path) -> None:
    flags = (*OWN, "--module-arguments", '{"hidden_size": 12}', "--epochs", 2, "--checkpoint-every-steps", 4)
    assert train("train_lightning", digits, tmp_path / "whole", *flags, "--max-steps", 37) == 0
    # Stops within the first epoch, at its end, and within the second.
    for steps in (6, 21, 30, 37):
        assert train("train_lightning", digits, tmp_path / "parts", *flags, "--max-steps", steps) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    whole = lines(tmp_path / "whole")
    assert weights(tmp_path / "whole")["layers.1.weight"].shape == (12, 64)
    assert whole[-1]["loss"] < 0.7 * whole[0]["loss"]
    validated = [line for line in whole if "validation_accuracy" in line]
    assert [line["step"] for line in validated] == [21]
    assert validated[0]["validation_accuracy"] > 0.3
    assert validated[0]["learning_rate"] == pytest.approx(0.5 * 0.7**5)


def test_a_module_may_end_its_training_early(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("train_lightning", digits, tmp_path, "--module", "lightning_modules:EndsEarly", "--epochs", 3) == 0
    assert "the module or a callback of it ended the training after step 21" in capsys.readouterr().out
    assert [folder.name for folder in checkpoint_folders(tmp_path / "checkpoints")] == ["step-00000021"]
    assert weights(tmp_path)["layers.1.weight"].shape == (8, 64)


def test_a_task_resumes_after_a_stop(digits: Path, tmp_path: Path) -> None:
    """In one process; the stop file is there from the beginning, so no step is taken the first time."""
    stop = tmp_path / "stop"
    stop.touch()
    flags = ("--max-steps", 5, "--stop-file", stop)
    assert train("train_lightning", digits, tmp_path / "out", *flags) == 75
    stop.unlink()
    assert train("train_lightning", digits, tmp_path / "out", *flags) == 0
    assert train("train_lightning", digits, tmp_path / "out", *flags) == 0, "no steps are left"
    assert train("train_ddp", digits, tmp_path / "ddp", "--max-steps", 5) == 0
    expected = weights(tmp_path / "ddp")
    for name, tensor in weights(tmp_path / "out").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("flags", "exit_code", "message"),
    [
        (("--module", "lightning_modules"), 2, "expected package.module:Class"),
        (("--module", "nowhere:Digits"), 2, "the module nowhere is missing"),
        (("--module", "lightning_modules:torch"), 2, "torch is not a lightning.pytorch.LightningModule"),
        (("--module", "lightning_modules:WithoutOptimizer"), 2, "lacks configure_optimizers, which Lightning needs"),
        (("--module", "lightning_modules:Manual"), 1, "optimizes manually"),
        ((*OWN, "--module-arguments", '{"width": 3}'), 1, "unexpected keyword argument 'width'"),
        ((*OWN, "--module-arguments", "[3]"), 1, "--module-arguments must be a JSON object"),
        (("--module-arguments", "{}"), 1, "--module-arguments is given without --module"),
    ],
)
def test_a_module_that_cannot_be_trained_is_one_line(
    digits: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
    exit_code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train("train_lightning", digits, tmp_path, *flags) == exit_code
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert message in said[0]


def test_without_lightning_the_step_names_the_extra(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    assert train("train_lightning", digits, tmp_path) == 2
    assert 'train_lightning needs the package lightning; pip install "trainyard[lightning]"' in capsys.readouterr().err
