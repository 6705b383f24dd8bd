"""Where a model's files are in the folder that was given for it."""

from __future__ import annotations

from pathlib import Path

from trainyard.steps.runtime.errors import StepError

CONFIG_FILE = "config.json"


def find_model(folder: Path) -> Path:
    """Return the folder with config.json; in an MLflow model it lies further within. StepError unless there is one."""
    if (folder / CONFIG_FILE).is_file():
        return folder
    found = sorted(file.parent for file in folder.rglob(CONFIG_FILE))
    if len(found) != 1:
        places = ", ".join(map(str, found[:3])) or "none"
        raise StepError(f"--base-model {folder}: expected one folder with {CONFIG_FILE}; found {places}")
    return found[0]
