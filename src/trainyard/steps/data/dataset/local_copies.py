"""Copies of datasets' files on this node's own disk, made in the background, within a limit.

A copy is named by its content, so ranks, datasets and jobs share them. Files that no longer fit are read where they
are: in a random order each sample is read once per epoch, and whichever files are here save as much as any others.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from trainyard.steps.data.dataset.shards import Shard

_PIECE_BYTES = 4 << 20


def default_folder() -> Path:
    """Return where copies are kept: in TMPDIR, which is on the node's own disk."""
    return Path(tempfile.gettempdir()) / f"trainyard-data-{os.getuid()}"


class LocalCopies:
    """Copies the shards of a training's datasets, one after another, in threads that end with `close` or when done.

    Shards come in the order of `datasets`, by the folder of each; what does not fit is not copied. The copiers of a
    node, one for each rank, share the work: each begins with its own part of the shards.
    """

    def __init__(
        self,
        datasets: Mapping[Path, Sequence[Shard]],
        folder: Path,
        limit_bytes: int,
        *,
        threads: int = 1,
        copier: int = 0,
        copiers: int = 1,
    ) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        shards = {shard.sha256: (source, shard) for source, of_dataset in datasets.items() for shard in of_dataset}
        self._own = frozenset(shards)
        order = sorted(range(len(shards)), key=lambda number: (number % copiers != copier, number))
        self._left = [list(shards.values())[number] for number in reversed(order)]
        self._here: dict[str, Path] = {}
        self._lock, self._closed = threading.Lock(), threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        self._threads = [threading.Thread(target=self._run, name="local-copies", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def copy_of(self, shard: Shard) -> Path | None:
        """Return the copy of a shard, if there is one by now. Another job may remove it at any time."""
        return self._here.get(shard.sha256)

    def close(self) -> None:
        """End the threads; copies stay for the next attempt."""
        self._closed.set()
        self.wait()

    def wait(self) -> None:
        """Return once everything that fits is copied."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                if not self._left:
                    return
                source, shard = self._left.pop()
            copy = self._folder / shard.sha256
            with suppress(OSError):  # a full disk, a file that another job removed: the shard is read where it is
                if not (copy.exists() and copy.stat().st_size == shard.bytes) and not self._copy(source, shard, copy):
                    continue
                os.utime(copy)
                self._here[shard.sha256] = copy

    def _copy(self, source: Path, shard: Shard, copy: Path) -> bool:
        """Copy a shard. Return whether it is there: it fits, and is what the manifest says."""
        unfinished = self._folder / f"{shard.sha256}.{os.getpid()}"
        with self._lock, _locked(self._folder):
            if not self._make_room(shard.bytes):
                self._left.clear()
                return False
            writing = unfinished.open("wb")
            fcntl.flock(writing, fcntl.LOCK_EX)  # until the file is closed, or this process has died
            writing.truncate(shard.bytes)  # of its whole size at once, for whoever counts what is here
        try:
            with writing, (source / shard.file).open("rb") as reading:
                digest = hashlib.sha256()
                while (piece := reading.read(_PIECE_BYTES)) and not self._closed.is_set():
                    digest.update(piece)
                    writing.write(piece)
                writing.flush()
                if digest.hexdigest() == shard.sha256:
                    with self._lock, _locked(self._folder):  # else whoever counts may see neither name
                        unfinished.replace(copy)
        finally:
            unfinished.unlink(missing_ok=True)
        return copy.exists()

    def _make_room(self, size_bytes: int) -> bool:
        """Remove copies of other datasets, those that were not used for longest first, until another file fits.

        Before them, what processes that died have left unfinished.
        """
        found = []
        for file in self._folder.iterdir():
            with suppress(OSError):  # another job may remove it
                if file.suffix and _is_abandoned(file):
                    file.unlink()
                    continue
                status = file.stat()
                found.append((status.st_mtime, status.st_size, file))
        used = sum(size for _, size, _ in found)
        for _, size, file in sorted(found):
            if used + size_bytes <= self._limit_bytes:
                break
            if file.stem not in self._own:
                file.unlink(missing_ok=True)
                used -= size
        return used + size_bytes <= self._limit_bytes


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process makes room in the folder: each must count what the others have put there."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_abandoned(unfinished: Path) -> bool:
    """Return whether no process writes a file any more."""
    with unfinished.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
