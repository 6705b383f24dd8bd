"""Whether a file is what was written."""

from __future__ import annotations

import hashlib
from pathlib import Path

_READ_BYTES = 1 << 20


def file_sha256(file: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()
