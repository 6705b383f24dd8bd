"""What `trainyard explain FILE` says of each job before a run: reused, or the file or value that changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.forecast import JobForecast, forecast
from trainyard.rehearse.runner import RunOptions


@pytest.fixture
def pipeline(workspace: Any) -> Path:
    (workspace.root / "data").mkdir()
    (workspace.root / "data" / "a.txt").write_text("a")
    (workspace.code / "train.py").write_text("print('trained')")
    prepare = workspace.component(
        "prepare",
        "cp '${{inputs.raw}}/a.txt' '${{outputs.out}}'",
        inputs={"raw": {"type": "uri_folder"}},
        outputs={"out": "uri_folder"},
    )
    train = workspace.component(
        "train",
        "python train.py '${{inputs.data}}' ${{inputs.epochs}}",
        inputs={"data": {"type": "uri_folder"}, "epochs": {"type": "integer", "default": 8}},
    )
    return Path(
        workspace.pipeline(
            {
                "prepare": {"component": prepare, "inputs": {"raw": {"type": "uri_folder", "path": "../data"}}},
                "train": {"component": train, "inputs": {"data": "${{parent.jobs.prepare.outputs.out}}"}},
            }
        )
    )


def of(workspace: Any, file: Path, **options: Any) -> dict[str, JobForecast]:
    jobs = forecast(workspace.load(file), RunOptions(workspace.runs_folder, **options))
    return {job.name: job for job in jobs}


def test_before_the_first_run_everything_runs(workspace: Any, pipeline: Path) -> None:
    assert {job.why for job in of(workspace, pipeline).values()} == {"it has not run before"}
    assert not workspace.runs_folder.exists()


def test_what_did_not_change_is_reused_as_the_run_then_does(workspace: Any, pipeline: Path) -> None:
    workspace.run(pipeline, name="first")

    assert {job.reused_from for job in of(workspace, pipeline).values()} == {"first"}
    again = workspace.run(pipeline)
    assert {job.reused_from for job in again.jobs.values()} == {"first"}


def test_the_file_that_changed_is_named_and_what_follows_from_it(workspace: Any, pipeline: Path) -> None:
    workspace.run(pipeline, name="first")
    (workspace.root / "data" / "a.txt").write_text("b")
    (workspace.root / "data" / "b.txt").write_text("b")

    jobs = of(workspace, pipeline)

    assert jobs["prepare"].why == "changed since run first"
    assert jobs["prepare"].changes == ["input raw: a.txt, b.txt (new)"]
    assert jobs["train"].changes == ["input data: from prepare, which runs again"]


def test_code_values_and_commands_that_changed_are_named(workspace: Any, pipeline: Path) -> None:
    workspace.run(pipeline, name="first")
    (workspace.code / "train.py").write_text("print('trained better')")

    jobs = of(workspace, pipeline, overrides={"jobs.train.inputs.epochs": "16"})

    assert jobs["prepare"].why == "changed since run first"
    assert jobs["prepare"].changes == ["code: train.py"], "its command may read any file of the snapshot"
    assert jobs["train"].changes == [
        "code: train.py",
        "input data: from prepare, which runs again",
        "input epochs: 16 instead of 8",
    ]


def test_of_a_command_with_several_lines_those_that_changed_are_shown(workspace: Any) -> None:
    command = "echo one\necho two\necho three\n"
    workspace.run(workspace.one_job(command), name="first")

    jobs = of(workspace, workspace.one_job(command.replace("two", "2\necho 2.5")))

    assert jobs["work"].changes == ["command: echo 2 ⏎ echo 2.5 instead of echo two"]


def test_settings_that_forbid_reuse_are_named(workspace: Any, pipeline: Path) -> None:
    random = workspace.component("draws", "echo $RANDOM", outputs={"out": "uri_folder"}, is_deterministic=False)
    reads = workspace.component("reads", "true", inputs={"data": {"type": "uri_folder"}})
    file = workspace.pipeline(
        {
            "draws": {"component": random},
            "reads": {"component": reads, "inputs": {"data": "${{parent.jobs.draws.outputs.out}}"}},
        }
    )
    workspace.run(file)

    jobs = of(workspace, file)

    assert jobs["draws"].why == "is_deterministic: false"
    assert jobs["reads"].why == "it reads what draws will write"
