"""Microsoft's client against a stand-in for Azure on loopback (helpers/loopback_azure.py)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from loopback_azure import GROUP, SUBSCRIPTION, WORKSPACE, LoopbackAzure

from trainyard.cli import main

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # The client warns of its own dealings with marshmallow.
    from azure.ai.ml import MLClient
    from azure.identity import DefaultAzureCredential


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def azure(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackAzure]:
    """Azure on loopback, which this process takes for the real one."""
    with LoopbackAzure(tmp_path_factory.mktemp("azure")) as running:
        for name, value in running.variables.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.fixture
def client(azure: LoopbackAzure) -> Any:
    """Microsoft's client, with the credential that a user has."""
    return MLClient(
        DefaultAzureCredential(), SUBSCRIPTION, GROUP, WORKSPACE, enable_telemetry=False, show_progress=False
    )


@pytest.fixture
def trainyard(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command line in this process."""

    def run(*arguments: str) -> Outcome:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return run
