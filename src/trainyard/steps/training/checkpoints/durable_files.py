"""Files that are on disk when the call returns, with their digest taken on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from trainyard.steps.file_errors import errors_name

_PIECE_BYTES = 4 << 20
"""Written and digested one after the other while the processor still has them in its cache."""


def write_durably(file: Path, contents: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new file and force it to disk; gives its size in bytes and its SHA-256.

    One pass: nothing is read back. Writing, digesting and forcing all let other Python threads run.
    """
    digest, size_bytes = hashlib.sha256(), 0
    with errors_name(file), file.open("wb", buffering=0) as stream:
        for content in contents:
            whole = memoryview(content)
            for start in range(0, len(whole), _PIECE_BYTES):
                piece = whole[start : start + _PIECE_BYTES]
                digest.update(piece)
                size_bytes += len(piece)
                while piece:
                    piece = piece[stream.write(piece) :]
        os.fsync(stream.fileno())
    return size_bytes, digest.hexdigest()


def make_names_durable(folder: Path) -> None:
    """Force the names in a folder to disk, where the file system knows how to."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
