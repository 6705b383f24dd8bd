"""Which checkpoint a training goes on from: the newest that is whole, or the one asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.file_digests import file_sha256
from trainyard.steps.runtime.file_errors import errors_name
from trainyard.steps.training.checkpoints.commit import BrokenCheckpoint, Commit, SavedFile, read_commit
from trainyard.steps.training.checkpoints.retention import checkpoint_folders, is_checkpoint_name, set_aside
from trainyard.steps.training.checkpoints.together import Ranks


def choose_checkpoint(folder: Path, resume: str, ranks: Ranks) -> Path | None:
    """The checkpoint to go on from, the same on every rank, verified. StepError where the one asked for is none.

    A named checkpoint is where a training begins that has none of its own yet, so that the same command, started
    again, goes on. Named in `folder` itself, what came after it counts only if it was made since going back.
    """
    if resume == "never":
        ranks.main(lambda: set_aside(folder))
        return None
    if resume == "auto":
        return _first_whole(ranks.main(lambda: checkpoint_folders(folder)), ranks)
    named = Path(resume)
    back = ranks.main(lambda: name_to_go_back_to(folder, resume))
    own = ranks.main(lambda: _since_going_back(folder, back) if back else checkpoint_folders(folder))
    # What a training that went back has long removed need not be there any more.
    if not ranks.main(named.is_dir) and not (back and own):
        raise StepError(f"--resume {resume}: there is no such folder; auto, never or the folder of a checkpoint")
    chosen = _first_whole(own, ranks)
    if chosen is not None:
        return chosen
    within = ranks.main(lambda: checkpoint_folders(named))
    if not within:
        verify_checkpoint(named, ranks)
        return named
    newest = _first_whole(within, ranks)
    if newest is None:
        raise StepError(f"--resume {resume}: none of the checkpoints in this folder is whole")
    return newest


def name_to_go_back_to(folder: Path, resume: str) -> str | None:
    """The name of the checkpoint that is asked for, when it is one of the training's own folder."""
    named = Path(resume)
    if resume in ("auto", "never") or not is_checkpoint_name(named.name):
        return None
    return named.name if named.parent.resolve() == folder.resolve() else None


def _since_going_back(folder: Path, name: str) -> list[Path]:
    return [checkpoint for checkpoint in checkpoint_folders(folder) if _went_back_to(checkpoint) == name]


def _went_back_to(checkpoint: Path) -> str | None:
    try:
        return read_commit(checkpoint).went_back_to
    except BrokenCheckpoint:
        return None


def _first_whole(candidates: Sequence[Path], ranks: Ranks) -> Path | None:
    for candidate in candidates:
        try:
            verify_checkpoint(candidate, ranks)
        except BrokenCheckpoint as broken:
            if ranks.is_main:
                print(f"not resuming from {candidate.name}, which is no whole checkpoint: {broken}", flush=True)
        else:
            return candidate
    return None


def verify_checkpoint(folder: Path, ranks: Ranks) -> Commit:
    """Hold every file of a checkpoint to its size and digest, each rank a part of them.

    BrokenCheckpoint, on every rank, names the first that does not match. Another StepError when the file system does
    not give what is there, perhaps only now: an older checkpoint gone on with would cost the newer one.
    """
    commit = ranks.main(lambda: read_commit(folder))

    def verify_own_part() -> None:
        for name in list(commit.files)[ranks.rank :: ranks.size]:
            _verify_file(folder / name, commit.files[name])

    ranks.each(verify_own_part)
    return commit


def _verify_file(file: Path, saved: SavedFile) -> None:
    try:
        size_bytes = file.stat().st_size
        if size_bytes != saved.bytes:
            raise BrokenCheckpoint(f"{file} has {size_bytes} bytes instead of {saved.bytes}")
        with errors_name(file):
            digest = file_sha256(file)
    except FileNotFoundError:
        raise BrokenCheckpoint(f"{file} is missing") from None
    if digest != saved.sha256:
        raise BrokenCheckpoint(f"{file} is not what was written: its SHA-256 differs")
