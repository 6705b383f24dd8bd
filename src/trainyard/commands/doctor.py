"""`trainyard doctor`: is this machine ready for a local run, for the tests, for a submission?"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

_GIB = 2**30
_REQUIRED_FREE_DISK_BYTES = 2 * _GIB
_JOB_PACKAGES = (
    "torch",
    "numpy",
    "transformers",
    "safetensors",
    "mlflow-skinny",
    "scikit-learn",
    "pillow",
    "matplotlib",
)


_INSTALL = "pip install 'trainyard[train]'; in a checkout of Trainyard: make setup"


@dataclass(frozen=True)
class Check:
    """The result of one check: `missing` prevents a local run, `note` only costs a convenience."""

    what: str
    state: Literal["ok", "note", "missing"]
    found: str
    fix: str = ""


def examine(folder: Path) -> list[Check]:
    """Check everything a local run and a submission need, without importing or starting any of it."""
    return [
        _python(),
        _processors(),
        _disk(folder),
        *(_package(name, "missing", _INSTALL) for name in _JOB_PACKAGES),
        _package("azure-ai-ml", "note", "for submitting: pip install 'trainyard[azure]'"),
        _program(("chromium", "chromium-browser", "google-chrome"), "for the report's browser test"),
        _program(("az",), "for `az ml job create`"),
    ]


def print_checks(checks: Sequence[Check]) -> None:
    """Print one line per check, with the fix below where there is one."""
    colours = {"ok": "green", "note": "yellow", "missing": "red"}
    for check in checks:
        mark = click.style(f"{check.state:<7}", fg=colours[check.state])
        click.echo(f"{mark} {check.what}: {check.found}" + (f"\n        {check.fix}" if check.fix else ""))


def _python() -> Check:
    return Check("Python", "ok", ".".join(map(str, sys.version_info[:3])))


def _processors() -> Check:
    return Check("processors", "ok", str(os.cpu_count()))


def _disk(folder: Path) -> Check:
    free_bytes = shutil.disk_usage(folder).free
    found = f"{free_bytes / _GIB:.1f} GiB free"
    if free_bytes < _REQUIRED_FREE_DISK_BYTES:
        return Check("disk", "missing", found, "a run needs 2 GiB; `trainyard runs clean --keep 1` deletes old runs")
    return Check("disk", "ok", found)


def _package(name: str, state_if_absent: Literal["note", "missing"], fix: str) -> Check:
    try:
        return Check(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, state_if_absent, "not installed", fix)


def _program(names: tuple[str, ...], use: str) -> Check:
    for name in names:
        found = shutil.which(name)
        if found:
            return Check(name, "ok", found)
    return Check(names[0], "note", f"not found ({use})")
