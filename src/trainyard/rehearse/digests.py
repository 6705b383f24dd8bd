"""Digests of files and folders by content, remembered by size and times so that large data is read only once."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.errors import RunError, writing
from trainyard.settings.files import file_sha256, files_beneath, replace_text
from trainyard.settings.quantities import memory

# A file this new could be written again without its times changing, so its digest is not remembered.
_SETTLED_SECONDS = 2.0
# Less than this is read faster than looked up.
_REMEMBERED_BYTES = 1 << 16
_BYTES_BETWEEN_NOTES = 1 << 30


def digest_of(*parts: object) -> str:
    """Return one SHA-256 of all parts, which JSON must be able to represent, in hexadecimal."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class ContentDigests:
    """Content digests of files and folders, kept in `index_file` as long as these stay as they are.

    A file stays as it is while its path, size, modification time and inode do. The time of its last change of any kind
    says less: a hard link to it, as jobs get for large inputs, changes that. `note` is called during long reading,
    which a `cancellation` ends.
    """

    def __init__(
        self,
        index_file: Path,
        note: Callable[[str], None] = lambda text: None,
        cancellation: Cancellation | None = None,
        *,
        bytes_between_notes: int = _BYTES_BETWEEN_NOTES,
    ) -> None:
        self._cancellation = cancellation or Cancellation()
        self._index_file = index_file
        self._note = note
        self._bytes_between_notes = bytes_between_notes
        self._read_bytes = 0
        self._remembered: dict[str, list[str]] | None = None
        self._of_run: dict[str, str] = {}
        self._changed = False

    def of_path(self, path: Path) -> str:
        """Return the digest of a file, or of a folder's files with their relative names."""
        if path.is_file():
            return self.of_file(path)
        return self.of_files(files_beneath(path), f"{path}/")

    def of_files(self, files: Iterable[tuple[Path, str]], kept_as: str) -> str:
        """Return the digest of files with the names given beside them, including whether each is executable.

        It is remembered as `kept_as`.
        """
        listed = list(files)

        def digest() -> str:
            return digest_of(*sorted((name, os.access(file, os.X_OK), self.of_file(file)) for file, name in listed))

        return self._kept(kept_as, listed, digest)

    def of_file(self, file: Path) -> str:
        """Return the SHA-256 of a file's content."""
        if file.stat().st_size < _REMEMBERED_BYTES:
            return self._read_digest(file)
        return self._kept(str(file), [(file, "")], lambda: self._read_digest(file))

    def once(self, name: str, files: Iterable[tuple[Path, str]]) -> str:
        """Return the digest of files as they were when this was first called with the name: looking takes time too."""
        if name not in self._of_run:
            self._of_run[name] = self.of_files(files, name)
        return self._of_run[name]

    def _kept(self, name: str, files: Sequence[tuple[Path, str]], compute: Callable[[], str]) -> str:
        """Return what is remembered under a name for the files' state, else what is computed now."""
        state = _state_of(files)
        if state.size_bytes < _REMEMBERED_BYTES:
            return compute()
        remembered = self._load()
        known = remembered.get(name)
        if known is not None and known[0] == state.digest:
            return known[1]
        digest = compute()
        if time.time() - state.newest >= _SETTLED_SECONDS and _state_of(files) == state:
            remembered[name] = [state.digest, digest]
            self._changed = True
        return digest

    def _read_digest(self, file: Path) -> str:
        try:
            return file_sha256(file, lambda count: self._count(file, count))
        except OSError as error:
            raise RunError(f"{file}: cannot be read ({error.strerror})") from error

    def _count(self, file: Path, count_bytes: int) -> None:
        """Count what is read, and note it from time to time; raise `RunError` when the run is canceled."""
        self._cancellation.check()
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

    def _load(self) -> dict[str, list[str]]:
        if self._remembered is None:
            try:
                index = dict(json.loads(self._index_file.read_text(encoding="utf-8")))
            except (OSError, ValueError):
                index = {}  # the index only saves time; without it files are read again
            self._remembered = {name: kept for name, kept in index.items() if isinstance(kept, list) and len(kept) == 2}
        return self._remembered


class _State(NamedTuple):
    """What changes when one of some files does, how large they are together, and the newest modification time."""

    digest: str
    size_bytes: int
    newest: float


def _state_of(files: Iterable[tuple[Path, str]]) -> _State:
    statuses = [(name, file.stat()) for file, name in files]
    seen = sorted((name, s.st_size, s.st_mtime_ns, s.st_dev, s.st_ino, s.st_mode) for name, s in statuses)
    size_bytes = sum(status.st_size for _, status in statuses)
    return _State(digest_of(seen), size_bytes, max((status.st_mtime for _, status in statuses), default=0.0))


def write_json(file: Path, document: object) -> None:
    """Replace a JSON file that only saves time: a damaged one counts as missing. Raise `RunError` on failure."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        # ext4 writes a file to the disk, and waits, when it takes another's place: milliseconds for each job.
        file.unlink(missing_ok=True)
        replace_text(file, json.dumps(document, ensure_ascii=False) + "\n", is_durable=False)
