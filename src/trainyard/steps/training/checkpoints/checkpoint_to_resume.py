"""The checkpoint folders of a training: which one to resume from, and which ones to keep."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TypeVar

from trainyard.settings.files import describe_os_error, os_errors_name
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.commit import COMMIT_FILE, BrokenCheckpoint, Commit, SavedFile, read_commit

Value = TypeVar("Value")
Use = Callable[[Path, Commit], Value]

_FOLDER_NAME = re.compile(r"step-\d{8,}")
_UNUSED_BYTES = 1 << 20
"""How much is read at a time of what nobody asks for."""


class OneRank:
    """A rank that chooses a checkpoint alone. Several do so together as `checkpoints.collectives.Ranks`."""

    rank, size, is_main = 0, 1, True

    def each(self, action: Callable[[], Value]) -> list[Value]:
        """Return what the action returns on each rank. What one rank raises, all raise."""
        return [action()]

    def main(self, action: Callable[[], Value]) -> Value:
        """Return what the action returns on rank 0."""
        return action()


def step_folder(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return folder / f"step-{step:08d}"


def is_checkpoint_name(name: str) -> bool:
    """Return whether a folder of this name is meant to be a checkpoint."""
    return _FOLDER_NAME.fullmatch(name) is not None


def checkpoint_folders(folder: Path) -> list[Path]:
    """Return the folders that look like checkpoints, the newest step first."""
    if not folder.is_dir():
        return []
    found = [child for child in folder.iterdir() if is_checkpoint_name(child.name)]
    return sorted(found, key=_step, reverse=True)


def keep_newest_and_best(newest: Path, keep: int, *, keep_best: bool) -> None:
    """Keep the last few and the best up to `newest`, which was committed just now.

    All others are removed: older ones, what an interrupted save left behind, and later ones that were not complete when
    this training resumed. A failure is logged, and tried again after the next checkpoint.
    """
    try:
        others = [folder for folder in checkpoint_folders(newest.parent) if folder != newest]
        earlier = [folder for folder in others if _step(folder) < _step(newest) and (folder / COMMIT_FILE).is_file()]
        kept = [newest, *earlier][:keep]
        if keep_best:
            kept += [folder for folder in (newest, *earlier) if _is_best(folder)][:1]
    except OSError as failure:
        # Nothing is removed before it is known what to keep.
        print(f"warning: cannot look for old checkpoints, so all are kept: {describe_os_error(failure)}", flush=True)
        return
    for folder in (folder for folder in others if folder not in kept):
        try:
            remove_checkpoint(folder)
        except OSError as failure:
            print(f"warning: cannot remove an old checkpoint: {describe_os_error(failure)}", flush=True)


def remove_checkpoint(folder: Path) -> None:
    """Remove a folder, its commit first, so that an interrupted removal leaves no checkpoint."""
    (folder / COMMIT_FILE).unlink(missing_ok=True)
    if folder.is_dir():
        shutil.rmtree(folder)


def set_aside(folder: Path, resume: str, *, after_step: int = -1) -> None:
    """Move the checkpoints of later steps into a subfolder, where a training looks for them only if told to."""
    found = [checkpoint for checkpoint in checkpoint_folders(folder) if _step(checkpoint) > after_step]
    if not any((checkpoint / COMMIT_FILE).is_file() for checkpoint in found):
        return
    aside = next(path for number in itertools.count(1) if not (path := folder / f"set-aside-{number}").exists())
    aside.mkdir()
    for checkpoint in found:
        checkpoint.rename(aside / checkpoint.name)
    which = "existing" if after_step < 0 else "later"
    print(f"--resume {resume}: moved the {which} checkpoints to {aside}", flush=True)


def _is_best(folder: Path) -> bool:
    """Return whether a checkpoint is marked as the best so far. The newest one marked so is the best of all."""
    try:
        return read_commit(folder).is_best
    except StepError:
        return False


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def choose_checkpoint(folder: Path, resume: str, ranks: OneRank, use: Use[Value]) -> tuple[Path, Value] | None:
    """Return the checkpoint to resume from, the same on every rank, and what `use` returned; or None to start over.

    `use` verifies a checkpoint, and may restore it meanwhile: BrokenCheckpoint, on every rank, if it is not as it was
    saved. StepError if `resume` names a folder that is not a checkpoint. A named checkpoint is used only while the
    training has none of its own, so that the same command, run again, continues. If it lies in `folder` itself, later
    ones count only if they were made after going back to it.
    """
    if resume == "never":
        ranks.main(lambda: set_aside(folder, resume))
        return None
    if resume == "auto":
        return _first_complete(ranks.main(lambda: checkpoint_folders(folder)), ranks, use)
    named = Path(resume)
    back = ranks.main(lambda: name_to_go_back_to(folder, resume))
    own = ranks.main(lambda: [own for own in checkpoint_folders(folder) if not back or _went_back_to(own) == back])
    # A training that went back may have removed the checkpoint since, having made newer ones.
    if not ranks.main(named.is_dir) and not (back and own):
        raise StepError(f"--resume {resume}: no such folder; expected auto, never or the folder of a checkpoint")
    chosen = _first_complete(own, ranks, use)
    if chosen is not None:
        return chosen
    within = ranks.main(lambda: checkpoint_folders(named))
    if not within:
        used = use(named, ranks.main(lambda: read_commit(named)))
        if back:
            ranks.main(lambda: set_aside(folder, resume, after_step=_step(named)))
        return named, used
    newest = _first_complete(within, ranks, use)
    if newest is None:
        raise StepError(f"--resume {resume}: no complete checkpoint in this folder")
    return newest


def name_to_go_back_to(folder: Path, resume: str) -> str | None:
    """Return the name of the checkpoint that `resume` asks for if it is one of the training's own, else None."""
    named = Path(resume)
    if resume in ("auto", "never") or not is_checkpoint_name(named.name):
        return None
    return named.name if named.parent.resolve() == folder.resolve() else None


def _went_back_to(checkpoint: Path) -> str | None:
    try:
        return read_commit(checkpoint).went_back_to
    except BrokenCheckpoint:
        return None


def _first_complete(candidates: Sequence[Path], ranks: OneRank, use: Use[Value]) -> tuple[Path, Value] | None:
    for candidate in candidates:
        try:
            return candidate, use(candidate, ranks.main(partial(read_commit, candidate)))
        except BrokenCheckpoint as broken:
            if ranks.is_main:
                what = f"not resuming from {candidate.name}, which is not a complete checkpoint"
                print(f"warning: {what}: {broken}", flush=True)
    return None


def verify_files(folder: Path, commit: Commit, ranks: OneRank) -> None:
    """Compare every file of a checkpoint with its size and digest in the commit, each rank a part of them.

    BrokenCheckpoint, on every rank, names the first file that differs. Any other StepError means that a file could not
    be read, perhaps only for now: to resume from an older checkpoint would then cost the newer one.
    """

    def verify_share() -> None:
        for name in list(commit.files)[ranks.rank :: ranks.size]:
            read_file(folder / name, commit.files[name])

    ranks.each(verify_share)


def read_file(
    file: Path, saved: SavedFile, places: Iterable[tuple[int, memoryview]] = (), *, is_whole: bool = True
) -> None:
    """Fill memory with what a file has from a position on, in the order of positions; the next is asked for then.

    BrokenCheckpoint, in the end, if the file is not what was saved; if only these places are read and not the `whole`
    file, by its size alone.
    """
    digest, unused = hashlib.sha256(), memoryview(bytearray(_UNUSED_BYTES))
    try:
        with os_errors_name(file), file.open("rb", buffering=0) as stream:
            size_bytes = os.fstat(stream.fileno()).st_size
            if size_bytes != saved.bytes:
                raise BrokenCheckpoint(f"{file} has {size_bytes} bytes; expected {saved.bytes}")
            for position, memory in itertools.chain(places, [(size_bytes, memoryview(b""))]):
                if not is_whole:
                    stream.seek(position)
                while (gap_bytes := position - stream.tell()) > 0:
                    _fill(unused[:gap_bytes], stream)
                    digest.update(unused[:gap_bytes])
                _fill(memory, stream)
                digest.update(memory)
    except FileNotFoundError:
        raise BrokenCheckpoint(f"{file} is missing") from None
    except EOFError:
        raise BrokenCheckpoint(f"{file} became shorter while it was read") from None
    if is_whole and digest.hexdigest() != saved.sha256:
        raise BrokenCheckpoint(f"{file} has changed since it was written: its SHA-256 differs")


def _fill(memory: memoryview, stream: FileIO) -> None:
    while memory:
        if not (count := stream.readinto(memory)):
            raise EOFError
        memory = memory[count:]
