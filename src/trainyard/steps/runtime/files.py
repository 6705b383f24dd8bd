"""Files as steps read and write them: JSON with clear errors, outputs that can be written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainyard.settings.files import os_errors_name
from trainyard.steps.runtime.errors import StepError

CONFIG_FILE = "config.json"


def write_json(file: Path, document: Any) -> None:
    """Write a document, indented. Not atomic, but a half-written object is invalid JSON and thus noticed."""
    with os_errors_name(file):
        file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def parse_json(text: str | bytes, what: object) -> Any:
    """Return the value of a JSON text. StepError, which calls it `what`, if it is invalid, or nested too deeply or with
    too long a number for Python."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise StepError(f"{what} is not valid JSON: {failure}") from None


def read_json_object(file: Path, expected_format: str) -> dict[str, Any]:
    """Return a JSON object whose `format` must be the expected one. StepError names the file and what is wrong."""
    document = parse_json(file.read_bytes(), file)
    found = document.get("format") if isinstance(document, dict) else None
    if found != expected_format:
        raise StepError(f"{file} has the format {found!r}; this version of Trainyard reads {expected_format!r}")
    assert isinstance(document, dict)
    return document


def require_folder(flag: str, folder: Path) -> None:
    """Raise StepError, with the flag, unless the folder exists."""
    if folder.is_file():
        raise StepError(f"{flag} {folder} is a file; give the folder that holds it")
    if not folder.is_dir():
        raise StepError(f"{flag} {folder}: no such folder")


def require_writable(folders: Iterable[Path], rank: int) -> None:
    """Make the folders and write a byte into each. OSError names one that is not writable."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-check-{rank}"
        with os_errors_name(probe):
            probe.write_bytes(b"1")
        probe.unlink()


def find_model(folder: Path) -> Path:
    """Return the folder with config.json; in an MLflow model it lies further within. StepError unless there is one."""
    if (folder / CONFIG_FILE).is_file():
        return folder
    found = sorted(file.parent for file in folder.rglob(CONFIG_FILE))
    if len(found) != 1:
        places = ", ".join(map(str, found[:3])) or "none"
        raise StepError(f"--base-model {folder}: expected one folder with {CONFIG_FILE}; found {places}")
    return found[0]
