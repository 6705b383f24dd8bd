"""Adafactor and AdamW with 8 bits: what they compute, that they resume exactly, and where they are refused."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_processes import training_arguments
from torch.nn import functional

from trainyard.steps.training.fragments import replicated_state
from trainyard.steps.training.optimizer import OptimizerSettings, gradient_norm, new_optimizer, optimizer_step
from trainyard.steps.training.precision import LossScale

needs_torchao = pytest.mark.skipif(
    find_spec("torchao") is None, reason='no torchao: pip install "trainyard-azureml[torchao]"'
)
EIGHT_BITS = pytest.param("adamw8bit", marks=needs_torchao)


def train(step: str, data: Path, out: Path, *flags: object) -> int:
    arguments = [str(argument) for argument in training_arguments(data, out, "tiny_task:TinyTask", *flags)]
    exit_code: int = importlib.import_module(f"trainyard.steps.{step}").main(arguments)
    return exit_code


def weights(out: Path) -> bytes:
    return (out / "model" / "model.safetensors").read_bytes()


def layers() -> torch.nn.Module:
    """Two matrices, of which one is large enough for 8 bits, and two vectors."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))


def first_weight(model: torch.nn.Module) -> torch.Tensor:
    return next(model.parameters()).detach()


def loss(model: torch.nn.Module) -> torch.Tensor:
    return functional.mse_loss(model(torch.linspace(-1, 1, 128).view(2, 64)), torch.ones(2, 3))


def take_steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int, learning_rate: float) -> None:
    scale = LossScale(torch.device("cpu"), enabled=False)
    for _ in range(steps):
        torch.autograd.backward(loss(model))
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        optimizer_step(optimizer, scale, norm, clip_norm=0.0, learning_rate=learning_rate)


@pytest.mark.parametrize("dtypes", [[torch.float32] * 2, [torch.float32, torch.bfloat16], []], ids=str)
def test_the_norm_of_gradients_is_that_of_torch(dtypes: list[torch.dtype]) -> None:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(7, 5, dtype=dtype)) for dtype in dtypes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    without_gradient = torch.nn.Parameter(torch.ones(3))
    expected = torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    assert torch.equal(gradient_norm([*parameters, without_gradient]), expected)


def test_adafactor_takes_the_steps_of_torchs_own() -> None:
    ours, theirs = layers(), layers()
    take_steps(ours, new_optimizer(ours.parameters(), OptimizerSettings(0.1, name="adafactor")), 4, 0.02)
    matrices, vectors = ([p for p in theirs.parameters() if (p.dim() >= 2) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    reference = torch.optim.Adafactor(groups, lr=0.02)
    for _ in range(4):
        torch.autograd.backward(loss(theirs))
        reference.step()
        reference.zero_grad()
    assert all(torch.equal(*both) for both in zip(ours.parameters(), theirs.parameters(), strict=True))
    assert not torch.equal(first_weight(ours), first_weight(layers()))


def test_adafactor_keeps_a_row_and_a_column_of_each_matrix() -> None:
    model = layers()
    optimizer = new_optimizer(model.parameters(), OptimizerSettings(0.1, name="adafactor"))
    sizes = {
        fragment.key: fragment.values.numel()
        for fragment in replicated_state(model, optimizer)
        if fragment.key.startswith("optimizer/2.")
    }
    assert sizes == {
        "optimizer/2.weight/step": 1,
        "optimizer/2.weight/row_var": 3,
        "optimizer/2.weight/col_var": 64,
        "optimizer/2.bias/step": 1,
        "optimizer/2.bias/variance": 3,
    }


@needs_torchao
def test_eight_bits_stay_close_to_adamw_and_take_a_quarter() -> None:
    small, whole = layers(), layers()
    optimizers = [
        new_optimizer(model.parameters(), OptimizerSettings(0.1, name=name))
        for model, name in ((small, "adamw8bit"), (whole, "adamw"))
    ]
    for model, optimizer in zip((small, whole), optimizers, strict=True):
        take_steps(model, optimizer, 4, 0.001)
    start, of_small, of_whole = (first_weight(model) for model in (layers(), small, whole))
    difference = (of_small - of_whole).abs().mean() / (of_whole - start).abs().mean()
    assert 0 < difference < 0.1
    of_8_bits, of_32 = (
        sum(f.values.nbytes for f in replicated_state(m, o) if f.key.startswith("optimizer/0.weight/exp_avg"))
        for m, o in zip((small, whole), optimizers, strict=True)
    )
    assert of_8_bits < 0.35 * of_32, "with a table of 256 values for each moment"


@pytest.mark.parametrize("optimizer", ["adafactor", EIGHT_BITS])
def test_a_resumed_training_ends_with_the_same_bits(digits: Path, tmp_path: Path, optimizer: str) -> None:
    flags = ("--optimizer", optimizer, "--learning-rate-schedule", "constant", "--ema-decay", 0.9)
    assert train("train_ddp", digits, tmp_path / "whole", *flags, "--max-steps", 12) == 0
    assert train("train_ddp", digits, tmp_path / "parts", *flags, "--max-steps", 5) == 0
    assert train("train_single", digits, tmp_path / "parts", *flags, "--max-steps", 12) == 0
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


def test_another_optimizer_does_not_continue(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("train_ddp", digits, tmp_path, "--max-steps", 3) == 0
    assert train("train_ddp", digits, tmp_path, "--max-steps", 4, "--optimizer", "adafactor") == 1
    assert "belongs to another training, with optimizer 'adamw' (now 'adafactor')" in capsys.readouterr().err


@pytest.mark.parametrize("step", ["train_fsdp", "train_lightning"])
def test_steps_that_cannot_have_it_refuse_it(
    digits: Path, tmp_path: Path, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(step, digits, tmp_path, "--optimizer", "adafactor") == 1
    assert "error: --optimizer adafactor does not work with" in capsys.readouterr().err


def test_a_missing_package_is_named(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    assert train("train_ddp", digits, tmp_path, "--optimizer", "adamw8bit") == 2
    said = capsys.readouterr().err
    assert '--optimizer adamw8bit needs the package torchao; pip install "trainyard-azureml[torchao]"' in said


def test_what_a_state_dict_has_beneath_a_weight_is_no_buffer() -> None:
    """As the scales of 4-bit weights, which bitsandbytes copies there: they are frozen and follow from the weights."""

    class Scaled(torch.nn.Linear):
        def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}weight.absmax"] = torch.ones(4)
            destination[f"{prefix}weight.quant_state.nf4"] = torch.ones(4)

    model = torch.nn.Sequential(Scaled(4, 4), torch.nn.BatchNorm1d(4))
    saved = {fragment.key for fragment in replicated_state(model, torch.optim.SGD(model.parameters(), lr=0.1))}
    buffers = {f"model/1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert saved == buffers | {f"model/{layer}.{name}" for layer in (0, 1) for name in ("weight", "bias")}
