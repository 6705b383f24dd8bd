"""Verbs in a repository that is not a Trainyard project: they work, and suggest only what fits there."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

PIPELINE = """\
type: pipeline
jobs:
  hello:
    type: command
    command: echo hello
    code: .
    environment: azureml:env:1
    compute: azureml:cpu
"""


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "pipeline.yml").write_text(PIPELINE)
    (tmp_path / "jobs" / "other.yml").write_text(PIPELINE.replace("compute:", "compue:").replace("code: .", "code: .."))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_lint_without_arguments_checks_the_whole_folder(trainyard: Run) -> None:
    outcome = trainyard("lint")
    assert outcome.exit_code == 1
    assert "jobs/other.yml:8:5" in outcome.stderr


def test_a_run_suggests_only_commands_that_work_here(trainyard: Run) -> None:
    outcome = trainyard("run", "pipeline.yml", "--quiet")
    assert outcome.exit_code == 0, outcome.stderr
    assert "plan pipeline.yml" in outcome.stdout
    assert "render" not in outcome.stdout
    assert "hello" in trainyard("graph", "pipeline.yml").stdout
    assert trainyard("plan", "pipeline.yml").exit_code == 0


def test_runs_never_enter_a_snapshot_on_azure(trainyard: Run, repository: Path) -> None:
    wrote = "wrote .amlignore: Azure ML would upload .trainyard with the code of hello"
    assert wrote in trainyard("run", "pipeline.yml", "--quiet").stderr
    assert "/.trainyard/" in (repository / ".amlignore").read_text().splitlines()
    assert ".amlignore" not in trainyard("run", "pipeline.yml", "--quiet").stderr


@pytest.mark.parametrize("name", [".amlignore", ".gitignore"])
def test_an_ignore_file_of_the_users_stays_as_it_is(trainyard: Run, repository: Path, name: str) -> None:
    warning = "warning: Azure ML would upload .trainyard with the code of hello; add .trainyard/ to "
    (repository / name).write_text("*.log\n")
    assert warning + name in trainyard("run", "pipeline.yml", "--quiet").stderr
    assert (repository / name).read_text() == "*.log\n"
    assert (repository / ".trainyard" / ".gitignore").read_text() == "*\n"

    (repository / name).write_text(".trainyard/\n")
    assert "warning" not in trainyard("run", "pipeline.yml", "--quiet").stderr


def test_a_project_is_needed_to_render(trainyard: Run) -> None:
    outcome = trainyard("render", "t4")
    assert outcome.exit_code == 2
    assert "`trainyard init NAME` starts one" in outcome.stderr


REGISTERED = """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  prepare:
    type: command
    component: azureml:prepare_data:3
  score:
    component: azureml://registries/azureml/components/score/versions/1
    inputs:
      data: ${{parent.jobs.prepare.outputs.prepared}}
"""


def test_a_pipeline_of_components_kept_in_azure_ml_cannot_run_here(trainyard: Run, repository: Path) -> None:
    (repository / "registered.yml").write_text(REGISTERED)
    explained = trainyard("explain", "registered.yml")
    assert explained.exit_code == 0, explained.stderr
    assert explained.stdout.splitlines()[:2] == [
        "registered.yml runs on Azure ML only, not here:",
        "  registered.yml:6: the component 'azureml:prepare_data:3' is kept in Azure ML and not readable offline",
    ]
    outcome = trainyard("run", "registered.yml")
    assert outcome.exit_code == 1
    assert "registered.yml:6:16: error[AML901] the component 'azureml:prepare_data:3' is kept" in outcome.stderr


def test_another_version_of_a_component_kept_in_azure_ml_is_a_change(trainyard: Run, repository: Path) -> None:
    file = repository / "registered.yml"
    file.write_text(REGISTERED)
    for arguments in (("init", "--quiet"), ("add", "registered.yml"), ("commit", "--quiet", "-m", "all")):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@example.com", *arguments], check=True)
    file.write_text(REGISTERED.replace("prepare_data:3", "prepare_data:4") + "  last: {component: azureml:last:1}\n")
    told = trainyard("plan", "registered.yml", "--against", "HEAD").stdout
    assert "component (prepare)  azureml:prepare_data:3 → azureml:prepare_data:4" in told
    assert "job last   new: azureml:last:1, kept in Azure ML: not known here" in told


def test_components_kept_in_azure_ml_are_drawn(trainyard: Run, repository: Path) -> None:
    (repository / "registered.yml").write_text(REGISTERED)
    drawn = trainyard("graph", "registered.yml")
    assert drawn.exit_code == 0, drawn.stderr
    assert "prepare  kept in Azure ML" in drawn.stdout
    assert "▷ prepared" in drawn.stdout
    assert "◁ data" in drawn.stdout
    assert "<b>score</b><br>kept in Azure ML" in trainyard("graph", "registered.yml", "--format", "mermaid").stdout

    (repository / "whole.yml").write_text("type: pipeline\ncomponent: azureml:whole:1\n")
    assert "whole  kept in Azure ML" in trainyard("graph", "whole.yml").stdout
    assert "<b>whole</b><br>kept in Azure ML" in trainyard("graph", "whole.yml", "--format", "mermaid").stdout


def test_packages_without_a_pin_are_not_compared_with_one(trainyard: Run) -> None:
    assert "pinned to" not in trainyard("doctor").stdout
