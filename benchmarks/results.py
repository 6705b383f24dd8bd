"""Keeps a benchmark's figures with the machine, the versions and the day they were seen on."""

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

# Every benchmark imports this first: it measures the checkout that it lies in, also where that is not installed.
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("trainyard", "torch", "transformers", "accelerate", "lightning", "click", "jinja2", "jsonschema-rs")


def save_results(name: str, figures: dict[str, Any]) -> Path:
    """Write benchmarks/results/<name>.json and give its path."""
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
    """Of what is installed: a benchmark needs only some of it."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
