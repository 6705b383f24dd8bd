"""Layers that multiply in float8: what they replace, and where they are refused."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from rank_processes import training_arguments

from trainyard.steps import train_ddp
from trainyard.steps.training.engines.blocks import multiply_in_float8

needs_torchao = pytest.mark.skipif(
    find_spec("torchao") is None, reason='no torchao: pip install "trainyard-azureml[torchao]"'
)


@needs_torchao
def test_gradients_stay_close_and_names_stay() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 10))
    samples = torch.randn(16, 32)
    names = list(model.state_dict())
    (plain,) = torch.autograd.grad(model(samples).square().mean(), [model[0].weight])
    multiply_in_float8([model], emulate=True)
    assert type(model[0]).__name__ == "Float8Linear"
    assert type(model[2]) is torch.nn.Linear, "10 is not a multiple of 16"
    assert list(model.state_dict()) == names
    (rounded,) = torch.autograd.grad(model(samples).square().mean(), [model[0].weight])
    difference = (rounded - plain).norm() / plain.norm()
    assert 0 < difference < 0.1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--precision", "bf16"), "--float8 needs a GPU that multiplies in float8 (L4, L40S, H100 and later); this is"),
        ((), "--float8 needs --precision bf16 for everything else; found fp32"),
    ],
)
def test_where_it_is_refused(
    digits: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = training_arguments(digits, tmp_path, "tiny_task:TinyTask", "--float8", "true", *flags)
    assert train_ddp.main([str(argument) for argument in arguments]) == 1
    assert words in capsys.readouterr().err
