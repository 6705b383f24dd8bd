"""Names and folders of new runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from trainyard.local.errors import UsageError
from trainyard.local.records import RECORD_FILE, cannot_write

# A run's name is part of the ids of its MLflow runs, whose length MLflow limits.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def create_run_folder(runs_folder: Path, run_folder: Path | None, name: str | None, pipeline: str) -> tuple[str, Path]:
    """Make the folder of a new run; gives the run's name and the folder, absolute.

    Without a name it is the time and the pipeline's, as in `20261120-213045-ddp`, which sorts by age. Raises
    `UsageError` for a name that is taken or no name, `RunError` when the folder cannot be made.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r}: use letters, digits, - and _, at most 100, beginning with a letter or digit"
        )
    if run_folder is not None:
        return name or _cleaned(run_folder.resolve().name), _create(run_folder.resolve(), may_exist=True)
    runs_folder = runs_folder.resolve()
    if name is not None:
        return name, _create(runs_folder / name, may_exist=False)
    for candidate in _fresh_names(pipeline):
        try:
            return candidate, _create(runs_folder / candidate, may_exist=False)
        except UsageError:
            continue
    raise AssertionError("there is always another name")


def _fresh_names(pipeline: str) -> Iterator[str]:
    base = f"{time.strftime('%Y%m%d-%H%M%S')}-{_cleaned(pipeline)}"
    yield base
    for number in count(2):
        yield f"{base}-{number}"


def _cleaned(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:80] or "run"


def _create(folder: Path, *, may_exist: bool) -> Path:
    """Make it; one that exists is taken only where it was named as a folder and is empty."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        if may_exist and folder.is_dir() and not any(folder.iterdir()):
            return folder
        if (folder / RECORD_FILE).exists() or not may_exist:
            raise UsageError(f"{folder}: there is a run of this name already; choose another") from None
        raise UsageError(f"{folder}: exists and is not an empty folder; choose another for the run") from None
    except OSError as error:
        raise cannot_write(folder, error) from error
    return folder
