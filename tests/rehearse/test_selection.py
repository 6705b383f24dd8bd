"""What `--only` and `--from` take from earlier runs: the run that suits best, and what the record says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def train_and_evaluate(workspace: Any) -> Path:
    return pipeline(workspace)


def pipeline(workspace: Any, *, deterministic: bool = True, command: str = "echo trained") -> Path:
    prepare = workspace.component(
        "prepare",
        "echo ${{inputs.size}} > '${{outputs.out}}/size'",
        inputs={"size": {"type": "integer", "default": 8}},
        outputs={"out": "uri_folder"},
        is_deterministic=deterministic,
    )
    train = workspace.component(
        "train",
        f"{command} ${{{{inputs.epochs}}}} > '${{{{outputs.model}}}}/epochs'",
        inputs={"epochs": {"type": "integer"}, "data": {"type": "uri_folder"}},
        outputs={"model": "uri_folder"},
    )
    evaluate = workspace.component(
        "evaluate", "cat '${{inputs.model}}/epochs'", inputs={"model": {"type": "uri_folder"}}
    )
    data = "${{parent.jobs.prepare.outputs.out}}"
    return workspace.pipeline(
        {
            "prepare": {"component": prepare},
            "train": {"component": train, "inputs": {"epochs": "${{parent.inputs.epochs}}", "data": data}},
            "evaluate": {"component": evaluate, "inputs": {"model": "${{parent.jobs.train.outputs.model}}"}},
        },
        inputs={"epochs": {"type": "integer", "default": 16}},
    )


def evaluated(record: Any) -> str:
    return str((record.folder / record.jobs["evaluate"].logs[0]).read_text().strip())


def test_a_result_of_other_inputs_is_reused_and_described(workspace: Any, train_and_evaluate: Path) -> None:
    workspace.run(train_and_evaluate, name="short", overrides={"inputs.epochs": "2"})

    record = workspace.run(train_and_evaluate, only="evaluate")

    job = record.jobs["train"]
    assert evaluated(record) == "trained 2"
    assert job.inputs["epochs"] == 2
    assert job.command.startswith("echo trained 2 > ")
    assert job.reuse == "taken from run short, whose inputs differ: epochs 2 instead of 16"
    assert f"train {job.reuse}" in workspace.shown
    assert "reused from" not in workspace.shown


@pytest.mark.parametrize("deterministic", [True, False], ids=["by key", "by inputs"])
def test_a_run_with_the_same_inputs_is_preferred_to_a_newer_one(workspace: Any, deterministic: bool) -> None:
    file = pipeline(workspace, deterministic=deterministic)
    workspace.run(file, name="long")
    workspace.run(file, name="short", overrides={"inputs.epochs": "2"})

    record = workspace.run(file, only="evaluate")

    assert evaluated(record) == "trained 16"
    assert record.jobs["train"].reuse == "taken from run long"


def test_differences_upstream_count_and_are_described(workspace: Any, train_and_evaluate: Path) -> None:
    workspace.run(train_and_evaluate, name="small")
    workspace.run(train_and_evaluate, name="large", overrides={"jobs.prepare.inputs.size": "9"})

    as_small = workspace.run(train_and_evaluate, name="as-small", only="evaluate")
    assert as_small.jobs["train"].reused_from == "small"

    edited = pipeline(workspace, command="echo well trained")
    record = workspace.run(edited, only="evaluate", overrides={"jobs.prepare.inputs.size": "7"})
    assert record.jobs["train"].reuse == "taken from run as-small; changed since: command, input data"


def test_a_reused_result_can_be_reused_again(workspace: Any, train_and_evaluate: Path) -> None:
    workspace.run(train_and_evaluate, name="short", overrides={"inputs.epochs": "2"})
    workspace.run(train_and_evaluate, name="taking", only="evaluate")

    record = workspace.run(train_and_evaluate, only="evaluate")

    assert record.jobs["train"].reuse == "taken from run taking, whose inputs differ: epochs 2 instead of 16"


def test_a_result_of_another_file_is_named_with_the_file(workspace: Any, train_and_evaluate: Path) -> None:
    workspace.run(train_and_evaluate, name="first")
    (workspace.root / "elsewhere").mkdir()
    other = pipeline(workspace, command="echo other").rename(workspace.root / "elsewhere" / train_and_evaluate.name)

    record = workspace.run(other, only="evaluate")

    assert record.jobs["train"].reuse == f"taken from run first of {train_and_evaluate}"
