"""Digests of files and folders by content, remembered by size and times so that large data is read only once."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from trainyard.rehearse.errors import RunError, cannot_write
from trainyard.settings.files import file_sha256, files_beneath, replace_text
from trainyard.settings.quantities import memory

# A file this new could be written again without its times changing, so its digest is not remembered.
_SETTLED_SECONDS = 2.0
# Smaller files are read faster than looked up.
_REMEMBERED_BYTES = 1 << 16
_BYTES_BETWEEN_NOTES = 1 << 30


def digest_of(*parts: object) -> str:
    """Return one SHA-256 of all parts, which JSON must be able to represent, in hexadecimal."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class ContentDigests:
    """Content digests of files, kept in `index_file` by inode, size and times; `note` tells of long reading."""

    def __init__(
        self,
        index_file: Path,
        note: Callable[[str], None] = lambda text: None,
        *,
        bytes_between_notes: int = _BYTES_BETWEEN_NOTES,
    ) -> None:
        self._index_file = index_file
        self._note = note
        self._bytes_between_notes = bytes_between_notes
        self._read_bytes = 0
        self._remembered: dict[str, str] | None = None
        self._changed = False

    def of_path(self, path: Path) -> str:
        """Return the digest of a file, or of a folder's files with their relative names."""
        if path.is_file():
            return self.of_file(path)
        return self.of_files(files_beneath(path))

    def of_files(self, files: Iterable[tuple[Path, str]]) -> str:
        """Return the digest of files with the names given beside them, including whether each is executable."""
        return digest_of(*sorted((name, os.access(file, os.X_OK), self.of_file(file)) for file, name in files))

    def of_file(self, file: Path) -> str:
        """Return the SHA-256 of a file's content."""
        status = file.stat()
        if status.st_size < _REMEMBERED_BYTES:
            return hashlib.sha256(file.read_bytes()).hexdigest()
        key = f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"
        remembered = self._load()
        if key not in remembered:
            digest = self._read_digest(file)
            if time.time() - max(status.st_mtime, status.st_ctime) < _SETTLED_SECONDS:
                return digest
            remembered[key] = digest
            self._changed = True
        return remembered[key]

    def _read_digest(self, file: Path) -> str:
        try:
            return file_sha256(file, lambda count: self._count(file, count))
        except OSError as error:
            raise RunError(f"{file}: cannot be read ({error.strerror})") from error

    def _count(self, file: Path, count_bytes: int) -> None:
        """Count what is read, and note it from time to time."""
        notes_before = self._read_bytes // self._bytes_between_notes
        self._read_bytes += count_bytes
        if self._read_bytes // self._bytes_between_notes > notes_before:
            so_far = f"{memory(self._read_bytes)} so far, now {file}"
            self._note(f"reading inputs to find out what has changed since the last run: {so_far}")

    def save(self) -> None:
        """Keep the digests for the next run. Raise `RunError` when they cannot be written."""
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


def write_json(file: Path, document: object) -> None:
    """Replace a JSON file that only saves time: a damaged one counts as missing. Raise `RunError` on failure."""
    try:
        # ext4 writes a file to the disk, and waits, when it takes another's place: milliseconds for each job.
        file.unlink(missing_ok=True)
        replace_text(file, json.dumps(document, ensure_ascii=False) + "\n", is_durable=False)
    except OSError as error:
        raise cannot_write(file, error) from error
