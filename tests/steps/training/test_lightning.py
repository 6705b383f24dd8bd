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
from forked_ranks import RankServer, forked_ranks
from killing import LightningTraining, Training, kill_until
from rank_processes import training_arguments
from safetensors.torch import load_file

from trainyard.steps.data.sample_order import SampleOrder
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders

OWN = ("--module", "lightning_modules:Digits")
DATA = "lightning_modules:DigitsData"
OWN_DATA = (
    *("--module", "lightning_modules:Pairs", "--data-module", DATA, "--epochs", 2, "--log-every-steps", 1),
    *("--global-batch-size", 64, "--micro-batch-size", 16),
)
NO_TASK = "image_classification"  # the default, which a module takes no notice of
SHARDED = ("--module", "lightning_modules:Sharded", "--strategy", "fsdp2")


def train(step: str, data: Path, out: Path, *flags: object, task: str = "tiny_task:WithoutDropout") -> int:
    """Train in this process, alone. Beside a module, the task is left at its default."""
    task = NO_TASK if "--module" in flags else task
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
    flags = (*batches, "--epochs", 3, "--evaluate-every-steps", 20, "--evaluation-batches", 2)
    assert train("train_ddp", digits, tmp_path / "ddp", *flags, "--micro-batch-size", 64) == 0
    arguments = training_arguments(
        digits, tmp_path / "lightning", "tiny_task:WithoutDropout", *flags, "--micro-batch-size", 16
    )
    exit_codes, outputs = forked_ranks().run("train_lightning", arguments, 2)
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
    assert len(one) == 5


@pytest.mark.slow
def test_a_killed_training_ends_with_the_bits_of_an_uninterrupted_one(
    digits: Path, tmp_path: Path, server: RankServer
) -> None:
    def new_training(name: str) -> Training:
        return LightningTraining(server, LIGHTNING.step, digits, tmp_path / name, LIGHTNING.flags(tmp_path))

    kill_until(new_training, 3, random.Random(3), print)


@pytest.mark.slow
def test_a_sharded_module_learns_what_ddp_learns_and_resumes_to_the_same_bits(digits: Path, tmp_path: Path) -> None:
    def new_training(name: str, flags: tuple[str, ...] = SHARDED) -> Training:
        return LightningTraining(forked_ranks(), LIGHTNING.step, digits, tmp_path / name, flags, task=NO_TASK)

    kill_until(new_training, 2, random.Random(5), print)
    whole = new_training("ddp", OWN)
    assert whole.attempt() == [0, 0], whole.log.read_text()
    expected, found = lines(tmp_path / "ddp"), lines(tmp_path / "whole")
    assert [line["loss"] for line in found] == pytest.approx([line["loss"] for line in expected], rel=1e-4)
    assert [line["grad_norm"] for line in found] == pytest.approx([line["grad_norm"] for line in expected], rel=1e-4)


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


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder that is not a prepared dataset."""
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder


def test_a_data_module_is_read_in_the_order_of_all_train_steps_and_resumes_to_the_same_bits(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with another number of worker processes: what a sample draws at random is its own."""
    record = ("--record-samples", tmp_path / "samples")
    assert train("train_lightning", raw, tmp_path / "whole", *OWN_DATA, *record) == 0
    for steps, workers in ((3, 0), (5, 1), (7, 2), (10, 0)):
        monkeypatch.setenv("DIGITS_WORKERS", str(workers))
        assert train("train_lightning", raw, tmp_path / "parts", *OWN_DATA, "--max-steps", steps) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))

    taken = [json.loads(line) for line in (tmp_path / "samples" / "rank-00000.jsonl").read_text().splitlines()]
    assert [line["sample_ids"] for line in taken] == [
        SampleOrder(320, 0, epoch).sample_ids(start, start + 64).tolist()
        for epoch in (1, 2)
        for start in range(0, 320, 64)
    ]
    validated = [line for line in lines(tmp_path / "whole") if "validation_accuracy" in line]
    assert [line["step"] for line in validated] == [5, 10]
    assert validated[1]["validation_accuracy"] > 0.4
    assert train("train_lightning", raw, tmp_path / "parts", *OWN_DATA, "--seed", 1) == 1


@pytest.mark.slow
def test_two_ranks_divide_the_samples_of_a_data_module_which_one_of_them_prepares(raw: Path, tmp_path: Path) -> None:
    flags = ("--module", "lightning_modules:PairsWithoutDropout", *OWN_DATA[2:])
    assert train("train_lightning", raw, tmp_path / "alone", *flags) == 0
    (raw / "prepared").unlink()
    arguments = training_arguments(raw, tmp_path / "two", NO_TASK, *flags)
    exit_codes, outputs = forked_ranks().run("train_lightning", arguments, 2)
    assert exit_codes == [0, 0], outputs
    assert (raw / "prepared").read_text() == "once\n"
    for name in ("loss", "grad_norm"):
        expected, found = ([line[name] for line in lines(tmp_path / out)] for out in ("alone", "two"))
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("data_module", "flags", "exit_code", "message"),
    [
        ("lightning_modules:torch", (), 2, "torch is not a lightning.pytorch.LightningDataModule"),
        ("lightning_modules:WithoutLoader", (), 2, "lacks train_dataloader, which Lightning needs"),
        ("lightning_modules:StreamedData", (), 1, "reads a Stream, whose samples have no indices to divide and resume"),
        ("lightning_modules:WeightedData", (), 1, "has a WeightedRandomSampler of its own, which could not resume"),
        ("lightning_modules:SeveralLoaders", (), 1, "returned a list; expected one torch.utils.data.DataLoader"),
        ("lightning_modules:BatchedByItself", (), 1, "has no batch_size, so samples could not be counted"),
        (DATA, ("--data-module-arguments", '{"size": 3}'), 1, "unexpected keyword argument 'size'"),
        (DATA, ("--verify-data", "digests"), 1, "--verify-data has no effect on --data-module"),
    ],
)
def test_a_data_module_that_cannot_be_read_is_one_line(
    raw: Path,
    tmp_path: Path,
    data_module: str,
    flags: tuple[str, ...],
    exit_code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = ("--module", "lightning_modules:Pairs", "--data-module", data_module)
    assert train("train_lightning", raw, tmp_path, *own, *flags) == exit_code
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said


def test_a_module_may_end_its_training_early(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--module", "lightning_modules:EndsEarly", "--epochs", 3, "--evaluate-every-epochs", 0)
    assert train("train_lightning", digits, tmp_path, *flags) == 0
    assert "the module or a callback of it ended the training after step 21" in capsys.readouterr().out
    assert [folder.name for folder in checkpoint_folders(tmp_path / "checkpoints")] == ["step-00000021"]
    assert weights(tmp_path)["layers.1.weight"].shape == (8, 64)
    assert not any("validation_accuracy" in line for line in lines(tmp_path)), "0 validates only at the end"


@pytest.mark.slow
def test_sigterm_on_one_rank_stops_both(digits: Path, tmp_path: Path) -> None:
    arguments = training_arguments(digits, tmp_path, NO_TASK, "--module", "lightning_modules:PreemptedRank")
    exit_codes, outputs = forked_ranks().run("train_lightning", arguments, 2)
    assert exit_codes == [75, 75], outputs
    assert "because of SIGTERM; its checkpoint is committed" in outputs[0]


def test_a_task_resumes_after_a_stop_and_with_other_micro_batches(digits: Path, tmp_path: Path) -> None:
    """In one process; the stop file is there from the beginning, so no step is taken the first time."""
    stop = tmp_path / "stop"
    stop.touch()
    flags = ("--global-batch-size", 64, "--learning-rate-schedule", "constant", "--stop-file", stop, "--max-steps")
    assert train("train_lightning", digits, tmp_path / "out", *flags, 5) == 75
    stop.unlink()
    assert train("train_lightning", digits, tmp_path / "out", *flags, 3, "--micro-batch-size", 32) == 0
    assert train("train_lightning", digits, tmp_path / "out", *flags, 5, "--micro-batch-size", 16) == 0
    assert train("train_lightning", digits, tmp_path / "out", *flags, 5) == 0, "no steps are left"
    assert train("train_ddp", digits, tmp_path / "ddp", *flags, 5, "--micro-batch-size", 64) == 0
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
        ((*OWN, "--module-arguments", "[3]"), 2, "--module-arguments must be a JSON object"),
        ((*OWN, "--module-arguments", "{"), 2, "is not valid JSON"),
        ((*OWN, "--evaluate-every-steps", 3), 1, "--evaluate-every-steps has no effect on --module"),
        ((*OWN, "--learning-rate", 0.1), 1, "--learning-rate has no effect on --module"),
        ((*OWN, "--compile", "true"), 1, "--compile has no effect on --module"),
        ((*OWN, "--label-smoothing", 0.2), 1, "--label-smoothing has no effect on --module"),
        (
            ("--module", "lightning_modules:NeverValidated", "--early-stop-patience", 1),
            1,
            "--early-stop-patience needs a validation_step",
        ),
        (("--strategy", "fsdp2"), 1, "--strategy fsdp2 is for a LightningModule of your own (--module); train_fsdp"),
        ((*OWN, "--strategy", "fsdp2"), 2, "Digits lacks configure_model, in which --strategy fsdp2 expects"),
        ((*SHARDED, "--precision", "fp16"), 1, "--strategy fsdp2 does not work with --precision fp16"),
        (("--module", "lightning_modules:PartlySharded", *SHARDED[2:]), 1, "the parameter temperature is not sharded"),
        (("--module", "lightning_modules:SeveralOptimizers"), 2, "configure_optimizers returned 2 optimizers, where"),
        (("--module", "lightning_modules:SeveralSchedules"), 2, "returned 2 optimizers, where"),
        (("--module", "lightning_modules:NoOptimizer"), 2, "configure_optimizers returned None, where"),
        (("--module", "lightning_modules:UnmonitoredPlateau"), 2, "must include a monitor when a `ReduceLROnPlateau`"),
        (("--module-arguments", "{}"), 1, "--module-arguments is given without --module"),
        (("--data-module", DATA), 1, "--data-module is for a LightningModule of your own (--module)"),
        (("--data-module-arguments", "{}"), 1, "--data-module-arguments is given without --data-module"),
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
    assert (
        'train_lightning needs the package lightning; pip install "trainyard-azureml[lightning]"'
        in capsys.readouterr().err
    )
