"""Scripts of Azure ML's Python SDK as YAML: what the client's own `dump` gives for what they submit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from trainyard.errors import UserError
from trainyard.project_files import read_text

_OF_SDK_V1 = re.compile(r"^\s*(?:from|import)\s+(azureml\.(?:core|pipeline|train))\b", re.MULTILINE)


def require_sdk_v2(script: Path) -> None:
    """Raise UserError for a script that does not use Azure ML's SDK v2; it is read, not run."""
    text = read_text(script, errors="replace")
    if "azure.ai.ml" not in text:
        v1 = _OF_SDK_V1.search(text)
        used = f"uses SDK v1 ({v1[1]}): docs/coming-from/sdk_v1.md has its classes as YAML" if v1 else "does not use it"
        raise UserError(f"{script} was not run: import reads scripts of SDK v2 (azure.ai.ml), and this one {used}")


def imported_files(script: Path, arguments: Sequence[str], output: Path) -> dict[str, str]:
    """Run a script, and return files by their paths below `output`, jobs first. Nothing is submitted.

    Raise UserError where the script fails or submits nothing.
    """
    command = [sys.executable, "-m", "trainyard.azure.recorder", str(script), *arguments]
    recorded = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout
    recording = json.loads(recorded) if recorded else {"error": f"{script} ended its process"}
    if recording["error"]:
        raise UserError(recording["error"])
    contents: dict[str, str] = {}
    for group, name, text in sorted(recording["files"], key=lambda file: file[0] != "jobs"):
        stem = re.sub(r"[^\w.-]+", "-", name).strip(".-") or script.stem
        path = Path("" if group == "jobs" else group, f"{stem}.yaml")
        while str(path) in contents:
            path = path.with_stem(f"{path.stem}_2")
        data = _tidied(yaml.safe_load(text), (output / path).parent)
        contents[str(path)] = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    if not contents:
        raise UserError(f"{script} submits nothing; expected a call such as ml_client.jobs.create_or_update(job)")
    return contents


def _tidied(value: Any, folder: Path, key: str = "") -> Any:
    """Return data with local paths relative to a folder, without the empty mappings that the client adds."""
    if isinstance(value, dict):
        return {key: _tidied(each, folder, key) for key, each in value.items() if each != {}}
    if isinstance(value, list):
        return [_tidied(each, folder) for each in value]
    return _relative(value, folder) if key in ("code", "path") else value


def _relative(path: str, folder: Path) -> str:
    """Return a local path relative to a folder, and others as they are. The client writes `azureml:` before inputs'."""
    local = path.removeprefix("azureml:")
    is_asset = path != local and "/" not in local and not Path(local).exists()
    is_elsewhere = is_asset or "://" in path or local.startswith(("/subscriptions/", "${{"))
    return path if is_elsewhere else os.path.relpath(local, folder)
