"""Traces of chosen steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rank_processes import training_arguments

from trainyard.steps import train_ddp
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.observing.observer import parse_profile_steps


def train(data: Path, out: Path, *more: object) -> int:
    arguments = training_arguments(data, out, "tiny_task:TinyTask", *more)
    return train_ddp.main([str(argument) for argument in arguments])


def traced_steps(out: Path) -> set[str]:
    """The names of the steps in a trace, which is a document of Chrome's trace event format."""
    events = json.loads((out / "metrics" / "profile" / "rank-00000.json").read_text())["traceEvents"]
    assert any(event.get("name") == "aten::linear" for event in events), "what torch did is in it"
    return {event["name"] for event in events if event.get("name", "").startswith("step ")}


def test_the_requested_steps_are_traced(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(digits, tmp_path, "--profile-steps", "3:5") == 0
    assert traced_steps(tmp_path) == {"step 3", "step 4", "step 5"}
    assert f"steps 3 to 5 traced: {tmp_path}/metrics/profile/rank-00000.json" in capsys.readouterr().out


def test_a_training_that_ends_before_the_last_requested_step(digits: Path, tmp_path: Path) -> None:
    assert train(digits, tmp_path, "--max-steps", 4, "--profile-steps", "4:9") == 0
    assert traced_steps(tmp_path) == {"step 4"}


def test_how_steps_are_written() -> None:
    assert parse_profile_steps(None) is None
    assert parse_profile_steps("10:12") == range(10, 13)
    with pytest.raises(StepError, match="--profile-steps '10-12': expected A:B, such as 10:12"):
        parse_profile_steps("10-12")
    for text in ("0:3", "7:5"):
        with pytest.raises(
            StepError, match=f"--profile-steps {text}: steps count from 1, and the last must not be before"
        ):
            parse_profile_steps(text)


def test_steps_beyond_the_end_are_rejected(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(digits, tmp_path, "--profile-steps", "22:23") == 1
    assert "--profile-steps 22:23: this training has 21 steps; choose some of them" in capsys.readouterr().err
