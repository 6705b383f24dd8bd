"""A command whose steps are in an archive of the snapshot is checked as one whose steps are files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.lint.config import LintSettings
from trainyard.lint.linter import lint
from trainyard.render.copies import archive_of_steps
from trainyard.resources import STEP_ARCHIVE

COMPONENT = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandComponent.schema.json
type: command
name: evaluate
inputs:
  data: {type: uri_folder}
  model: {type: uri_folder}
outputs:
  evaluation: {type: uri_folder}
code: ./src
environment: azureml:torch:3
command: >-
  PYTHONPATH="trainyard.zip:$PYTHONPATH" python -m trainyard.steps.evaluate
  --data '${{inputs.data}}'
  --model '${{inputs.model}}'
  --evaluation '${{outputs.evaluation}}'
"""
Lint = Callable[..., list[str]]


@pytest.fixture
def found(tmp_path: Path) -> Lint:
    """Lints a component, and returns rules and messages."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "task.py").write_text("import trainyard.tasks\n")
    (source / STEP_ARCHIVE).write_bytes(archive_of_steps())

    def findings(old: str = "", new: str = "", **files: str) -> list[str]:
        (tmp_path / "evaluate.yaml").write_text(COMPONENT.replace(old, new) if old else COMPONENT)
        for name, text in files.items():
            (source / name).write_text(text)
        result = lint([tmp_path], LintSettings())
        return [f"{finding.rule} {finding.message}" for finding in result.diagnostics]

    return findings


def test_flags_of_a_step_in_the_archive_are_known(found: Lint) -> None:
    assert found() == []
    assert found("--model ", "--modle ") == ["AML501 evaluate.py has no flag --modle"]
    assert found("  --model '${{inputs.model}}'\n", "")[0].startswith("AML502 ")


def test_a_step_that_the_archive_does_not_have(found: Lint) -> None:
    assert found("steps.evaluate", "steps.evaluat") == [
        "AML408 the package 'trainyard' in the code has no module 'steps.evaluat'"
    ]


@pytest.mark.parametrize(("name", "pattern"), [(".amlignore", "*.zip"), (".gitignore", "trainyard.*")])
def test_an_archive_that_would_not_be_uploaded(found: Lint, name: str, pattern: str) -> None:
    left_out = "AML407 'trainyard.zip' is not uploaded: the ignore file of the code excludes it"
    assert found(**{name: f"{pattern}\n"}) == [left_out]
    assert found(**{name: f"{pattern}\n!trainyard.zip\n"}) == []


def test_an_archive_that_is_missing(found: Lint, tmp_path: Path) -> None:
    (tmp_path / "src" / STEP_ARCHIVE).unlink()
    assert found() == ["AML418 the code folder 'src' contains no file 'trainyard.zip'"]
