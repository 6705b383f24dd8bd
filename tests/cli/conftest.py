"""Runs the command line in this process, and returns its output and exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from trainyard.cli import main

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def trainyard(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        code = ended.value.code
        return Outcome(code if isinstance(code, int) else int(code is not None), captured.out, captured.err)

    return run


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def jobs_are_forked(forked_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of `trainyard run` run with that Python."""
    monkeypatch.setattr(sys, "executable", str(forked_python))
