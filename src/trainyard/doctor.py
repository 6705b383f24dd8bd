"""Is this machine ready for a local run, for the tests, for a submission?"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_GIB = 2**30
_FREE_DISK_WANTED_BYTES = 2 * _GIB
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


@dataclass(frozen=True)
class Check:
    """One thing looked at: `missing` stops a local run, `note` takes away a convenience."""

    what: str
    state: Literal["ok", "note", "missing"]
    found: str
    mend: str = ""


def examine(folder: Path) -> list[Check]:
    """Look at everything once; nothing is imported or started, so this takes a moment only."""
    return [
        _python(),
        _processors(),
        _disk(folder),
        *(_package(name, "missing", "make setup") for name in _JOB_PACKAGES),
        _package("azure-ai-ml", "note", "for submitting: pip install 'trainyard[azure]'"),
        _program(("chromium", "chromium-browser", "google-chrome"), "for the report's browser test"),
        _program(("az",), "for `az ml job create`"),
    ]


def _python() -> Check:
    return Check("Python", "ok", ".".join(map(str, sys.version_info[:3])))


def _processors() -> Check:
    return Check("processors", "ok", str(os.cpu_count()))


def _disk(folder: Path) -> Check:
    free_bytes = shutil.disk_usage(folder).free
    found = f"{free_bytes / _GIB:.1f} GiB free"
    if free_bytes < _FREE_DISK_WANTED_BYTES:
        return Check("disk", "missing", found, "2 GiB are wanted: `trainyard runs clean --keep 1` frees what runs left")
    return Check("disk", "ok", found)


def _package(name: str, state_if_absent: Literal["note", "missing"], mend: str) -> Check:
    try:
        return Check(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, state_if_absent, "not installed", mend)


def _program(names: tuple[str, ...], use: str) -> Check:
    for name in names:
        found = shutil.which(name)
        if found:
            return Check(name, "ok", found)
    return Check(names[0], "note", f"not found ({use})")
