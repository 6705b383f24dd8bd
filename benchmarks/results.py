"""Keeps a benchmark's figures with the machine, the versions and the date."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

# Every benchmark imports this module first, so that it measures its own checkout even if that is not installed.
ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("trainyard", "torch", "transformers", "accelerate", "lightning", "click", "jinja2", "jsonschema-rs")


def save_results(name: str, figures: dict[str, Any]) -> Path:
    """Write benchmarks/results/<name>.json and return its path."""
    seen_on = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, {platform.system()}",
        "versions": _installed_versions(),
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"seen_on": seen_on, **figures}, indent=2) + "\n", encoding="utf-8")
    return path


def _installed_versions() -> dict[str, str]:
    """Return the versions of the packages that are installed; a benchmark needs only some."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
