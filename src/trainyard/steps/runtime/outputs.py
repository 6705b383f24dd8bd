"""The folders that a step writes, held to being writable before hours of work depend on it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trainyard.steps.runtime.file_errors import errors_name


def require_writable(folders: Iterable[Path], rank: int) -> None:
    """Make the folders and write a byte into each. OSError names the one that refuses."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-check-{rank}"
        with errors_name(probe):
            probe.write_bytes(b"1")
        probe.unlink()
