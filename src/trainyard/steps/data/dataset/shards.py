"""The files of a dataset's samples, and whether they are what was written: by size, or byte by byte."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from trainyard.settings.files import file_sha256
from trainyard.settings.quantities import counted, duration
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.long_work import ProgressLines

Item = TypeVar("Item")
Value = TypeVar("Value")

_SIZE_THREADS, _SHARDS_PER_SIZE_THREAD = 16, 256
"""A mounted blob store takes milliseconds per request but serves many at once; a few shards are not worth a thread."""
_DIGEST_THREADS = 4
_SECONDS_PER_GIGABYTE, _ALWAYS_SPENT_SECONDS = 1.0, 1.0
"""What `verify_data: auto` may cost: SHA-256 takes 0.5 to 0.7 s per GB on one processor with SHA extensions, 2 to 3 s
on one without, and the ranks share the files."""
_MEASURED_BYTES, _PIECE_BYTES = 16 << 20, 1 << 20


@dataclass(frozen=True)
class Shard:
    """One file: a range of the samples of one array."""

    array: str
    file: str
    samples: int
    bytes: int
    sha256: str


class VerifyingRanks(Protocol):
    """The processes that divide the work of checking a dataset among them."""

    rank: int
    size: int

    def log(self, message: str) -> None:
        """Print a line on rank 0 only."""

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, by rank, on every rank."""


def require_sizes(folder: Path, shards: Sequence[Shard]) -> None:
    """Raise StepError naming the first shard that is missing or whose size is not the manifest's."""
    starts = range(0, len(shards), _SHARDS_PER_SIZE_THREAD)
    parts = [shards[start : start + _SHARDS_PER_SIZE_THREAD] for start in starts]
    _check_all(lambda part: _require_size(folder, part), parts, _SIZE_THREADS)


def require_digests(folder: Path, shards: Sequence[Shard], progress: ProgressLines | None = None) -> None:
    """Raise StepError naming the first shard whose SHA-256 is not the manifest's."""

    def check(shard: Shard) -> None:
        file = folder / shard.file
        if file_sha256(file) != shard.sha256:
            raise StepError(f"{file} is not what was written: its SHA-256 differs from the dataset's manifest")

    _check_all(check, shards, _DIGEST_THREADS, progress)


def verify_dataset(folder: Path, shards: Sequence[Shard], ranks: VerifyingRanks, how: str = "digests") -> None:
    """Check the digest of every shard, a share on each rank. What one rank finds is raised on all, as StepError.

    `how` is `digests`, `sizes` (which `read_manifest` has checked; nothing more is done), or `auto`: digests if they
    take less than a second per GB, or less than a second in all, as estimated from the first megabytes.
    """
    own_shards = shards[ranks.rank :: ranks.size]
    if how == "sizes" or (how == "auto" and not _is_quick(folder, shards, own_shards, ranks)):
        return
    progress = ProgressLines("checked", len(own_shards), "files of rank 0's share of the dataset")
    problem = None
    try:
        require_digests(folder, own_shards, progress if ranks.rank == 0 else None)
    except (StepError, OSError) as failure:  # a rank that raised alone would leave the others waiting
        problem = str(failure)
    for found in ranks.gather(problem):
        if found:
            raise StepError(found)
    ranks.log(f"verified every byte of the dataset's {counted(len(shards), 'file')}")


def _is_quick(folder: Path, shards: Sequence[Shard], own_shards: Sequence[Shard], ranks: VerifyingRanks) -> bool:
    """Return, the same on every rank, whether digests are worth their time, by what each rank's first bytes take."""
    seconds = max(ranks.gather(_seconds_of_digests(folder, own_shards)))
    gigabytes = sum(shard.bytes for shard in shards) / 1e9
    if seconds <= max(_ALWAYS_SPENT_SECONDS, gigabytes * _SECONDS_PER_GIGABYTE):
        return True
    ranks.log(
        f"checked only the sizes of the dataset's {counted(len(shards), 'file')}: their digests would take about "
        f"{duration(seconds)} ({seconds / gigabytes:.1f} s per GB); --verify-data digests checks them all the same"
    )
    return False


def _seconds_of_digests(folder: Path, shards: Sequence[Shard]) -> float:
    """Estimate how long it takes to read these files and compute their digests, from the first megabytes."""
    total = sum(shard.bytes for shard in shards)
    try:
        with (folder / shards[0].file).open("rb") if shards else io.BytesIO() as stream:
            started = time.monotonic()
            read_bytes = 0
            while read_bytes < _MEASURED_BYTES and (piece := stream.read(_PIECE_BYTES)):
                hashlib.sha256(piece).digest()
                read_bytes += len(piece)
            seconds = time.monotonic() - started
    except OSError:
        return 0.0  # the check itself reports it
    return seconds * total / read_bytes if read_bytes else 0.0


def _require_size(folder: Path, shards: Sequence[Shard]) -> None:
    for shard in shards:
        file = os.path.join(folder, shard.file)
        try:
            found = os.stat(file)
        except (FileNotFoundError, NotADirectoryError):
            raise StepError(f"{file} is missing: the dataset's manifest lists it") from None
        if not stat.S_ISREG(found.st_mode):
            raise StepError(f"{file} is not a file: the dataset's manifest lists it")
        if found.st_size != shard.bytes:
            raise StepError(f"{file} has {found.st_size} bytes, expected {shard.bytes} as in the dataset's manifest")


def _check_all(
    check: Callable[[Item], None], items: Sequence[Item], threads: int, progress: ProgressLines | None = None
) -> None:
    """Check several at a time in threads, and raise what the check of the first one raises that fails."""
    with ThreadPoolExecutor(max(1, min(threads, len(items)))) as executor:
        for _ in executor.map(check, items):
            if progress is not None:
                progress.advance(1)
