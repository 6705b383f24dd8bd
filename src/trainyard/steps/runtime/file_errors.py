"""The operating system names no file when a write fails; whoever reads "No space left" wants to know where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def errors_name(file: Path) -> Iterator[None]:
    """Put the file's name into an OSError that has none."""
    try:
        yield
    except OSError as failure:
        if failure.filename is None:
            failure.filename = str(file)
        raise
