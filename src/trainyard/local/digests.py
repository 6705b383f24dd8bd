"""Digests of files and folders by content, remembered by size and times so that large data is read once."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from trainyard.local.errors import RunError
from trainyard.local.records import write_json
from trainyard.local.walking import files_beneath

_CHUNK_BYTES = 1 << 20
# A file written within this time could be written again without its times changing, so its digest is not remembered.
_SETTLED_SECONDS = 2.0
# Smaller files are read faster than they are looked up and kept.
_REMEMBERED_BYTES = 1 << 16


def digest_of(*parts: object) -> str:
    """One SHA-256 over JSON-representable parts, as hexadecimal text."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class ContentDigests:
    """Content digests of files; what was read is kept in `index_file` under inode, size and times."""

    def __init__(self, index_file: Path) -> None:
        self._index_file = index_file
        self._remembered: dict[str, str] | None = None
        self._changed = False

    def of_path(self, path: Path) -> str:
        """The digest of a file, or of a folder's files with their relative names."""
        if path.is_file():
            return self.of_file(path)
        return self.of_files(files_beneath(path))

    def of_files(self, files: Iterable[tuple[Path, str]]) -> str:
        """The digest of files under the names given beside them, whether executable included."""
        return digest_of(*sorted((name, os.access(file, os.X_OK), self.of_file(file)) for file, name in files))

    def of_file(self, file: Path) -> str:
        """The SHA-256 of a file's content."""
        status = file.stat()
        if status.st_size < _REMEMBERED_BYTES:
            return hashlib.sha256(file.read_bytes()).hexdigest()
        key = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        remembered = self._load()
        if key not in remembered:
            digest = _read_digest(file)
            if time.time() - max(status.st_mtime, status.st_ctime) < _SETTLED_SECONDS:
                return digest
            remembered[key] = digest
            self._changed = True
        return remembered[key]

    def save(self) -> None:
        """Keep what was read for the next run."""
        if self._changed and self._remembered is not None:
            write_json(self._index_file, self._remembered)
            self._changed = False

    def _load(self) -> dict[str, str]:
        if self._remembered is None:
            try:
                self._remembered = dict(json.loads(self._index_file.read_text(encoding="utf-8")))
            except (OSError, ValueError):
                self._remembered = {}  # the index only saves time; without it files are read again
        return self._remembered


def _read_digest(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror})") from error
    return digest.hexdigest()
