"""Microsoft's client against a stand-in for Azure on loopback (helpers/loopback_azure.py)."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from loopback_azure import GROUP, SUBSCRIPTION, WORKSPACE, LoopbackAzure

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # The client warns of its own dealings with marshmallow.
    from azure.ai.ml import MLClient
    from azure.identity import DefaultAzureCredential


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
