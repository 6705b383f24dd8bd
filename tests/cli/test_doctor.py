"""`trainyard doctor` with programs that answer as az and nvidia-smi do: small scripts, first on the PATH."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.settings.this_machine import output_of

Programs = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Puts a program in front of the PATH that prints a text."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))

    def add(name: str, prints: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\n")
        (folder / name).chmod(0o755)

    return add


@pytest.mark.parametrize(
    ("extensions", "expected"),
    [
        ({"ml": "2.39.0"}, "ok      az extension ml: 2.39.0"),
        ({}, "note    az extension ml: not installed\n        fix: az extension add --name ml"),
    ],
)
def test_az_and_its_extension(
    trainyard: Callable[..., Any], program: Programs, extensions: dict[str, str], expected: str
) -> None:
    program("az", json.dumps({"azure-cli": "2.80.0", "extensions": extensions}))
    outcome = trainyard("doctor")
    assert "ok      az: 2.80.0" in outcome.stdout
    assert expected in outcome.stdout


def test_gpus_that_torch_cannot_use_are_missing(trainyard: Callable[..., Any], program: Programs) -> None:
    """The tests hide every GPU from torch (tests/conftest.py)."""
    program("nvidia-smi", "NVIDIA H100 80GB HBM3, 81559 MiB, 570.1\nNVIDIA H100 80GB HBM3, 81559 MiB, 570.1")
    outcome = trainyard("doctor")
    assert outcome.exit_code == 1
    assert "ok      GPUs: 2 x NVIDIA H100 80GB HBM3, 81559 MiB, 570.1" in outcome.stdout
    assert "missing torch and GPUs: torch is built" in outcome.stdout
    assert "sees 0 GPUs\n        fix: install the build of torch for this driver" in outcome.stdout


def test_a_package_that_is_not_the_pinned_one_is_noted(
    trainyard: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = '# pins\nclick==7.0\nrich==1.0 ; python_version < "3"\n'
    (tmp_path / "constraints.txt").write_text(pins, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    lines = trainyard("doctor").stdout.splitlines()
    assert any(line.startswith("note    click: 8.") and line.endswith(", pinned to 7.0") for line in lines)
    assert "        fix: pip install 'click==7.0'" in lines
    assert any(line.startswith("ok      rich: ") for line in lines)


@pytest.mark.parametrize(
    ("package", "fix"),
    [
        ("azure-ai-ml", "pip install 'trainyard-azureml[azure]'; in a checkout: pip install -e '.[azure]'"),
        ("torch", "pip install 'trainyard-azureml[train]'; in a checkout: make setup"),
    ],
)
def test_a_missing_package_is_installed_by_the_extra_that_has_it(
    trainyard: Callable[..., Any], program: Programs, monkeypatch: pytest.MonkeyPatch, package: str, fix: str
) -> None:
    """`make setup` installs what a run needs, which azure-ai-ml is not."""
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert f"{package}: not installed\n        fix: {fix}\n" in trainyard("doctor").stdout


def test_what_a_program_prints_need_not_be_utf_8() -> None:
    printed = output_of(sys.executable, "-c", r"import sys; sys.stdout.buffer.write(b'caf\xff')")
    assert printed == "caf\N{REPLACEMENT CHARACTER}"
