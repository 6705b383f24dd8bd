"""Validation while training: when, on how many samples, the best figure, and stopping early."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_processes import training_arguments
from safetensors.torch import load_file
from tiny_task import TinyTask, WithoutDropout

from trainyard.settings.steps.tasks import TaskSettings
from trainyard.steps import prepare_images, train_ddp
from trainyard.steps.data.dataset.manifest import read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.evaluation.whole_split import evaluate_split
from trainyard.steps.runtime.world import World
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders, step_folder
from trainyard.steps.training.checkpoints.commit import read_commit
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.validation import Metric


def train(data: Path, out: Path, *more: object) -> int:
    return train_ddp.main([str(flag) for flag in training_arguments(data, out, "tiny_task:Measured", *more)])


def validated(out: Path) -> dict[int, float]:
    """The validation loss of each step that has one."""
    lines = [json.loads(line) for line in (out / "metrics" / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}


@pytest.mark.parametrize(
    ("best_is", "value", "than", "by", "is_better"),
    [
        ("lowest", 0.4, 0.5, 0.0, True),
        ("lowest", 0.5, 0.5, 0.0, False),
        ("lowest", 0.45, 0.5, 0.1, False),
        ("highest", 0.6, 0.5, 0.0, True),
        ("highest", 0.4, 0.5, 0.0, False),
        ("highest", 0.5, None, 0.0, True),
        ("lowest", math.nan, None, 0.0, False),
        ("highest", math.inf, 0.5, 0.0, False),
    ],
)
def test_which_figure_is_better(best_is: Any, value: float, than: float | None, by: float, is_better: bool) -> None:
    assert Metric("figure", best_is).is_better(value, than, by) is is_better


def test_it_is_due_at_steps_and_at_the_ends_of_epochs(digits: Path, tmp_path: Path) -> None:
    assert train(digits, tmp_path, "--epochs", 2, "--evaluate-every-steps", 15) == 0
    assert list(validated(tmp_path)) == [15, 21, 30, 42]


def test_a_training_without_progress_ends_early_and_stays_ended(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The accuracy cannot rise by a half twice after it has been measured for the first time."""
    flags = (
        *("--epochs", 9, "--best-metric", "accuracy", "--early-stop-patience", 3, "--early-stop-minimum-change", 0.5),
        *("--evaluate-every-steps", 5, "--evaluation-batches", 1, "--evaluate-every-epochs", 0),
        *("--checkpoint-every-steps", 7, "--keep-checkpoints", 99),
    )
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train(digits, whole, *flags) == 0
    said = capsys.readouterr().out
    last = max(validated(whole))
    assert f"the training ends after step {last}: the validation accuracy is " in said
    assert "in 3 evaluations (--early-stop-patience)" in said
    assert last < 9 * 21
    last_line = json.loads((whole / "metrics" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last_line["step"] == last
    assert "run_step_seconds_p50" in last_line, "it counts as the last one"

    # What is left of it after a crash between two evaluations.
    shutil.copytree(whole, cut)
    for folder in checkpoint_folders(cut / "checkpoints")[:-1]:
        shutil.rmtree(folder)
    assert train(digits, cut, *flags) == 0
    assert validated(cut) == validated(whole)
    newest = [checkpoint_folders(out / "checkpoints")[0] for out in (whole, cut)]
    commits = [read_commit(folder) for folder in newest]
    assert commits[0] == commits[1]
    assert (commits[0].progress.step, commits[0].progress.idle_validations) == (last, 3)

    (cut / "model" / "model.safetensors").unlink()
    assert train(digits, cut, *flags) == 0
    assert validated(cut) == validated(whole), "no step more"
    weights = [load_file(out / "model" / "model.safetensors") for out in (whole, cut)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_best_checkpoint_by_accuracy(digits: Path, tmp_path: Path) -> None:
    flags = ("--evaluate-every-steps", 7, "--keep-best-checkpoint", "true", "--best-metric", "accuracy")
    assert train(digits, tmp_path, *flags, "--keep-checkpoints", 1, "--checkpoint-every-steps", 0) == 0
    lines = [json.loads(line) for line in (tmp_path / "metrics" / "metrics.jsonl").read_text().splitlines()]
    accuracies = {line["step"]: line["validation_accuracy"] for line in lines if "validation_accuracy" in line}
    (best,) = (read_commit(folder) for folder in checkpoint_folders(tmp_path / "checkpoints") if is_best(folder))
    step = best.progress.step
    assert best.best_figure == max(accuracies.values()) == accuracies[step]

    # Its model: no step is left.
    folder = step_folder(tmp_path / "checkpoints", step)
    assert train(digits, tmp_path / "best", "--resume", folder, "--max-steps", step) == 0
    bias = load_file(folder / "state-rank-00000.safetensors")["model/4.bias[0:10]"]
    assert torch.equal(load_file(tmp_path / "best" / "model" / "model.safetensors")["4.bias"], bias)


def is_best(folder: Path) -> bool:
    return read_commit(folder).is_best


def test_a_part_of_the_split_is_spread_evenly_over_it(digits: Path) -> None:
    seen: list[int] = []

    class Watches(WithoutDropout):
        def measure(self, model: torch.nn.Module, batch: Any) -> dict[str, torch.Tensor]:
            seen.extend(batch["labels"].tolist())
            return super().measure(model, batch)

    manifest = read_manifest(digits)
    split, task = SplitReader(digits, manifest, "validation"), Watches(manifest, TaskSettings())
    with World(30, {}) as world:
        precision = Precision("fp32", world.device)
        sums = evaluate_split(task, task.new_model(), split, world, precision, 4, samples=10)
    assert int(sums["samples"]) == 10
    expected = split.gather(np.arange(10) * split.samples // 10)["labels"]
    assert seen == expected.tolist()


def test_invalid_settings_are_refused_in_one_line(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare_images.main(["--prepared", str(tmp_path / "whole"), "--validation-fraction", "0"]) == 0
    for data, flags, message in (
        (
            digits,
            ("--best-metric", "f1"),
            "--best-metric f1: the task tiny_task:Measured has loss, accuracy; choose one",
        ),
        (tmp_path / "whole", ("--early-stop-patience", 2), "--early-stop-patience needs a validation split, which"),
        (
            digits,
            ("--early-stop-patience", 2, "--evaluate-every-epochs", 0),
            "--early-stop-patience needs evaluations before the end; set --evaluate-every-epochs or",
        ),
    ):
        capsys.readouterr()
        assert train(data, tmp_path / "out", *flags) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_a_figure_that_is_named_but_never_measured_is_one_line(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TinyTask, "best_is", {"loss": "lowest", "f1": "highest"})
    arguments = training_arguments(digits, tmp_path, "tiny_task:TinyTask", "--best-metric", "f1")
    assert train_ddp.main([str(flag) for flag in (*arguments, "--early-stop-patience", 1)]) == 1
    assert "the validation has no figure f1 (--best-metric); it has accuracy, loss; choose" in capsys.readouterr().err
