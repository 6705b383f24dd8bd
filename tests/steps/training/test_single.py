"""Training in one process, undistributed: what DDP computes alone, from the same checkpoints."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from rank_processes import training_arguments


def train(step: str, data: Path, out: Path, *flags: object) -> int:
    arguments = [str(argument) for argument in training_arguments(data, out, "tiny_task:TinyTask", *flags)]
    exit_code: int = importlib.import_module(f"trainyard.steps.{step}").main(arguments)
    return exit_code


def learnt(out: Path) -> tuple[list[float], bytes]:
    """The losses and the trained weights."""
    lines = (out / "metrics" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines], (out / "model" / "model.safetensors").read_bytes()


def test_it_computes_the_bits_of_ddp_alone(digits: Path, tmp_path: Path) -> None:
    flags = ("--max-steps", 50, "--epochs", 3, "--log-every-steps", 1)
    assert train("train_ddp", digits, tmp_path / "ddp", *flags) == 0
    assert train("train_single", digits, tmp_path / "single", *flags) == 0
    # Without several GPUs there is nothing to divide among.
    assert train("train_single", digits, tmp_path / "parallel", *flags, "--data-parallel", "true") == 0
    losses, weights = learnt(tmp_path / "ddp")
    assert len(losses) == 50
    assert learnt(tmp_path / "single") == learnt(tmp_path / "parallel") == (losses, weights)


def test_it_goes_on_from_a_checkpoint_of_ddp(digits: Path, tmp_path: Path) -> None:
    flags = ("--learning-rate-schedule", "constant", "--warmup-fraction", 0)
    assert train("train_ddp", digits, tmp_path / "whole", *flags, "--max-steps", 12) == 0
    assert train("train_ddp", digits, tmp_path / "parts", *flags, "--max-steps", 5) == 0
    assert train("train_single", digits, tmp_path / "parts", *flags, "--max-steps", 12) == 0
    assert learnt(tmp_path / "parts")[1] == learnt(tmp_path / "whole")[1]


def test_several_processes_are_refused(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 6105}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    assert train("train_single", digits, tmp_path) == 2
    assert "train_single is one process, and 2 were started; use train_ddp, or start one" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--compile", "--activation-checkpointing"])
def test_what_copies_of_a_model_cannot_have_is_refused(
    digits: Path, tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("train_single", digits, tmp_path, "--data-parallel", "true", flag, "true") == 1
    assert f"--data-parallel does not work with {flag}; use train_ddp, or leave one out" in capsys.readouterr().err
