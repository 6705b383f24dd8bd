"""What docs/lint.md and the workflow in docs/workflows say can be done, can be done."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trainyard.lint.config import LintSettings, settings_for
from trainyard.lint.linter import lint
from trainyard.lint.rules import RULES

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "lint.md").read_text(encoding="utf-8")
TRAINYARD = Path(sys.executable).with_name("trainyard")


def block(language: str, word: str) -> str:
    """The block of the page that holds a word."""
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if word in text]
    return str(found)


def test_the_settings_on_the_page_are_settings(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(block("toml", "severity"))
    settings = settings_for([tmp_path], RULES)
    assert settings.severity
    assert settings.exclude
    assert settings.computes
    assert settings.baseline == tmp_path / "lint-baseline.json"


def test_the_comments_on_the_page_silence(tmp_path: Path) -> None:
    text = "type: command\nname: c\ncommand: run\n" + block("yaml", "ignore[AML410]")
    (tmp_path / "c.yaml").write_text(text.replace("AML101, AML104", "AML101"))
    assert lint([tmp_path]).diagnostics == ()
    (tmp_path / "c.yaml").write_text(re.sub("#.*", "", text))
    found = lint([tmp_path], LintSettings(pedantic=True)).diagnostics
    assert {diagnostic.rule for diagnostic in found} == {"AML101", "AML410"}


def test_every_rule_that_the_page_names_is_one() -> None:
    assert set(re.findall(r"AML\d{3}", PAGE)) <= set(RULES)


@pytest.mark.parametrize("command", ["lint --format github", "lint --format sarif"])
def test_the_workflow_runs_what_there_is(project: Path, command: str) -> None:
    workflow = yaml.safe_load((DOCS / "workflows" / "lint.yml").read_text(encoding="utf-8"))
    (steps,) = [job["steps"] for job in workflow["jobs"].values()]
    (line,) = [step["run"] for step in steps if command in step.get("run", "")]
    words = shlex.split(line)
    done = subprocess.run([TRAINYARD, *words[1:4]], cwd=project, capture_output=True, check=False)
    assert (words[0], done.returncode) == ("trainyard", 0)
