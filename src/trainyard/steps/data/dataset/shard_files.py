"""Whether a dataset's files are there and are what was written: their sizes, or every byte."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import file_sha256
from trainyard.steps.runtime.long_work import ProgressLines

if TYPE_CHECKING:
    from trainyard.steps.data.dataset.manifest import Manifest, Shard
    from trainyard.steps.runtime.world import World

Thing = TypeVar("Thing")

_SIZE_THREADS, _SHARDS_PER_SIZE_THREAD = 16, 256
"""A mounted blob store answers in milliseconds, but many questions at once; a few shards are not worth a thread."""
_DIGEST_THREADS = 4


def require_sizes(folder: Path, shards: Sequence[Shard]) -> None:
    """StepError names the first shard that is missing or has another size than the manifest says."""
    parts = [
        shards[start : start + _SHARDS_PER_SIZE_THREAD] for start in range(0, len(shards), _SHARDS_PER_SIZE_THREAD)
    ]
    _raise(_first_problem(lambda part: _wrong_size(folder, part), parts, _SIZE_THREADS))


def require_digests(folder: Path, shards: Sequence[Shard], progress: ProgressLines | None = None) -> None:
    """StepError names the first shard whose bytes are not those that were written."""

    def check(shard: Shard) -> str | None:
        file = folder / shard.file
        if file_sha256(file) == shard.sha256:
            return None
        return f"{file} is not what was written: its SHA-256 differs from the dataset's manifest"

    _raise(_first_problem(check, shards, _DIGEST_THREADS, progress))


def verify_dataset(folder: Path, manifest: Manifest, world: World) -> None:
    """Check the digest of every shard, shared out among the ranks. What one finds is raised on all, as StepError."""
    own_shards = manifest.shards()[world.rank :: world.size]
    progress = ProgressLines("checked", len(own_shards), "files of rank 0's share of the dataset")
    problem = None
    try:
        require_digests(folder, own_shards, progress if world.is_main else None)
    except (StepError, OSError) as failure:  # whoever raised alone would leave the others waiting
        problem = str(failure)
    _raise(next((found for found in world.gather(problem) if found), None))
    world.log(f"every byte of the dataset's {len(manifest.shards())} files is what was written")


def _wrong_size(folder: Path, shards: Sequence[Shard]) -> str | None:
    for shard in shards:
        file = os.path.join(folder, shard.file)
        try:
            found = os.stat(file)
        except (FileNotFoundError, NotADirectoryError):
            return f"{file} is missing: the dataset's manifest names it"
        if not stat.S_ISREG(found.st_mode):
            return f"{file} is no file: the dataset's manifest names it"
        if found.st_size != shard.bytes:
            return f"{file} has {found.st_size} bytes where the dataset's manifest says {shard.bytes}"
    return None


def _first_problem(
    check: Callable[[Thing], str | None], things: Sequence[Thing], threads: int, progress: ProgressLines | None = None
) -> str | None:
    """What is wrong with the first thing with which something is, found by several threads."""
    with ThreadPoolExecutor(max(1, min(threads, len(things)))) as executor:
        for problem in executor.map(check, things):
            if problem is not None:
                executor.shutdown(wait=False, cancel_futures=True)
                return problem
            if progress is not None:
                progress.advance(1)
    return None


def _raise(problem: str | None) -> None:
    if problem is not None:
        raise StepError(problem)
