"""An edit of a rendered file, as its author meets it: in `render --check`, then adopted or released."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Run = Callable[..., Any]


@pytest.fixture
def edited(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline whose cluster somebody changed where it is rendered to."""
    for folder in ("templates", "profiles", "settings"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "src").symlink_to(ROOT / "src")
    monkeypatch.chdir(tmp_path)
    assert trainyard("render", "t4").exit_code == 0
    file = tmp_path / "pipelines" / "ddp.yaml"
    file.write_text(file.read_text().replace("azureml:gpu-t4\n", "azureml:gpu-ours\n"))
    return file


def test_check_names_the_line_and_both_ways_out(trainyard: Run, edited: Path) -> None:
    outcome = trainyard("render", "--check")
    assert outcome.exit_code == 1
    lines = Path("profiles/t4.yaml").read_text().splitlines()
    cluster = 1 + next(at for at, line in enumerate(lines) if line.startswith("cluster: gpu-t4"))
    assert f": change profiles/t4.yaml:{cluster} (through templates/pipelines/_pipeline.j2:" in outcome.stderr
    assert "`trainyard render --adopt FILE` (edited values), `--release FILE`" in outcome.stderr


def test_check_shows_no_secret(trainyard: Run, edited: Path) -> None:
    token = f"hf_{'abcdefgh' * 4}"
    edited.write_text(edited.read_text().replace("azureml:gpu-ours\n", f"azureml:gpu-ours  # {token}\n"))
    outcome = trainyard("render", "--check")
    assert outcome.exit_code == 1
    assert "azureml:gpu-ours  # ***" in outcome.stdout
    assert token not in outcome.stdout + outcome.stderr


def test_an_adopted_edit_is_in_the_profile_and_in_every_file(trainyard: Run, edited: Path) -> None:
    outcome = trainyard("render", "--adopt", "pipelines/ddp.yaml")
    assert outcome.exit_code == 0, outcome.stderr
    assert "cluster: gpu-ours" in Path("profiles/t4.yaml").read_text()
    assert "gpu-ours" in Path("pipelines/fsdp.yaml").read_text()
    assert trainyard("render", "--check").exit_code == 0


def test_a_released_file_stays_as_it_is(trainyard: Run, edited: Path) -> None:
    outcome = trainyard("render", "--release", "pipelines/ddp.yaml")
    assert outcome.exit_code == 0, outcome.stderr
    assert "# Rendered" not in edited.read_text()
    assert trainyard("render").exit_code == 0
    assert "gpu-ours" in edited.read_text()
    assert trainyard("render", "--check").exit_code == 0


def test_a_rendering_elsewhere_names_a_released_component_where_it_is(trainyard: Run, edited: Path) -> None:
    assert trainyard("render", "--release", "components/train_ddp.yaml").exit_code == 0
    outcome = trainyard("lint", "pipelines/ddp.yaml", "--profile", "t4")
    assert outcome.exit_code == 0, outcome.stderr


def test_a_new_project_of_a_working_copy_is_checked(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trainyard("init", str(tmp_path / "demo")).exit_code == 0
    monkeypatch.chdir(tmp_path / "demo")
    outcome = trainyard("render", "--check")
    assert outcome.exit_code == 0, outcome.stderr


def test_known_findings_are_known_in_another_profile_too(trainyard: Run, edited: Path) -> None:
    template = Path("templates/pipelines/_pipeline.j2")
    template.write_text(template.read_text().replace("type: pipeline\n", "type: pipeline\nunheard_of: 1\n", 1))
    assert trainyard("render").exit_code == 0
    chosen = ("lint", "pipelines/ddp.yaml", "--baseline", "known.json")
    assert trainyard(*chosen, "--write-baseline").exit_code == 0
    outcome = trainyard(*chosen, "--profile", "local")
    assert outcome.exit_code == 0, outcome.stderr
    assert "in the baseline" in outcome.stderr


def test_they_go_with_nothing_else(trainyard: Run, edited: Path) -> None:
    outcome = trainyard("render", "--check", "--adopt", "pipelines/ddp.yaml")
    assert outcome.exit_code == 2
    assert "go with nothing else" in outcome.stderr
