"""Errors of the operating system in words, the same in the command line and in steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def describe_os_error(error: OSError) -> str:
    """Return one line: the file, where it is known, and the reason."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{os_error_reason(error)}"


def os_error_reason(error: OSError) -> str:
    """Return the reason in lower case, to stand within a message: `no space left on device`."""
    return (error.strerror or str(error)).lower()


@contextmanager
def os_errors_name(file: Path) -> Iterator[None]:
    """Put the file's name into an OSError without one: a failed write does not say where there was no space left."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(file)
        raise
