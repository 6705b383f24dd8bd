"""Files as steps read and write them: JSON with clear errors, outputs that can be written, and files that are on disk
when the call returns, with their digest computed on the way."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainyard.settings.files import os_errors_name
from trainyard.steps.runtime.errors import StepError

CONFIG_FILE = "config.json"
BLOCK_BYTES = 4096
"""Data aligned to this in memory and in the file can bypass the page cache."""
_PIECE_BYTES = 1024 * BLOCK_BYTES
"""How much is digested and written at a time."""


def write_json(file: Path, document: Any) -> None:
    """Write a document, indented. Not atomic, but a half-written object is invalid JSON and thus noticed."""
    with os_errors_name(file):
        file.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def parse_json(text: str | bytes, what: object) -> Any:
    """Return the value of a JSON text. StepError, which calls it `what`, if it is invalid, or nested too deeply or with
    too long a number for Python."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise StepError(f"{what} is not valid JSON: {failure}") from None


def sha256_of_json(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON document, however it is laid out as text."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read_json_object(file: Path, expected_format: str) -> dict[str, Any]:
    """Return a JSON object whose `format` must be the expected one. StepError names the file and what is wrong."""
    document = parse_json(file.read_bytes(), file)
    found = document.get("format") if isinstance(document, dict) else None
    if found != expected_format:
        raise StepError(f"{file} has the format {found!r}; this version of Trainyard reads {expected_format!r}")
    assert isinstance(document, dict)
    return document


def require_folder(flag: str, folder: Path) -> None:
    """Raise StepError, with the flag, unless the folder exists."""
    if folder.is_file():
        raise StepError(f"{flag} {folder} is a file; give the folder that holds it: {folder.parent}")
    if not folder.is_dir():
        raise StepError(f"{flag} {folder}: no such folder")


def require_writable(folders: Iterable[Path], rank: int) -> None:
    """Make the folders and write a byte into each. OSError names one that is not writable."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".write-check-{rank}"
        with os_errors_name(probe):
            probe.write_bytes(b"1")
        probe.unlink()


def empty_folder(folder: Path) -> None:
    """Make a folder, and remove what an interrupted attempt left there."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def find_model(folder: Path) -> Path:
    """Return the folder with config.json; in an MLflow model it lies further within. StepError unless there is one."""
    if (folder / CONFIG_FILE).is_file():
        return folder
    found = sorted(file.parent for file in folder.rglob(CONFIG_FILE))
    if len(found) != 1:
        places = ", ".join(map(str, found[:3])) or "none"
        raise StepError(f"--base-model {folder}: expected one folder with {CONFIG_FILE}; found {places}")
    return found[0]


def write_durably(file: Path, contents: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new file and force it to disk. Return its size in bytes and its SHA-256.

    One pass: nothing is read back. Writing, hashing and syncing all let other Python threads run.
    """
    digest = hashlib.sha256()
    with os_errors_name(file), file.open("wb", buffering=0) as stream:
        output = _Output(stream)
        for content in contents:
            whole = memoryview(content)
            for start in range(0, len(whole), _PIECE_BYTES):
                piece = whole[start : start + _PIECE_BYTES]
                digest.update(piece)
                output.write(piece)
        os.fsync(stream.fileno())
    return output.position, digest.hexdigest()


class _Output:
    """Writes whole blocks past the page cache where the system and the memory allow it (`man 2 open`, O_DIRECT).

    Copying state into the page cache is most of what saving costs in processor time, which the training could use.
    """

    def __init__(self, stream: io.FileIO) -> None:
        self.position = 0
        self._stream = stream
        self._may_be_direct = sys.platform == "linux"
        self._is_direct = False

    def write(self, piece: memoryview) -> None:
        """Append all of it."""
        while piece:
            whole_blocks = len(piece) - len(piece) % BLOCK_BYTES
            is_aligned = self.position % BLOCK_BYTES == 0 and whole_blocks > 0
            written = self._write_directly(piece[:whole_blocks]) if is_aligned and self._may_be_direct else None
            if written is None:
                self._switch(direct=False)
                written = self._stream.write(piece)
            self.position += written
            piece = piece[written:]

    def _write_directly(self, blocks: memoryview) -> int | None:
        """Return how many bytes were written, or None where the file system or the alignment forbids it."""
        try:
            self._switch(direct=True)
            return self._stream.write(blocks)
        except OSError as failure:
            if failure.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self._may_be_direct = False
            return None

    def _switch(self, *, direct: bool) -> None:
        if self._is_direct == direct or sys.platform != "linux":
            return
        import fcntl

        flags = fcntl.fcntl(self._stream, fcntl.F_GETFL)
        fcntl.fcntl(self._stream, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)
        self._is_direct = direct


def make_names_durable(folder: Path) -> None:
    """Force the names in a folder to disk, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
