"""Which checkpoint a training goes on from: the newest that is whole, or the one asked for."""

from __future__ import annotations

from pathlib import Path

from trainyard.steps.errors import StepError
from trainyard.steps.file_digests import file_sha256
from trainyard.steps.file_errors import errors_name
from trainyard.steps.training.checkpoints.commit import BrokenCheckpoint, Commit, SavedFile, read_commit
from trainyard.steps.training.checkpoints.retention import checkpoint_folders, remove_checkpoint
from trainyard.steps.training.checkpoints.together import Ranks


def choose_checkpoint(folder: Path, resume: str, ranks: Ranks) -> Path | None:
    """The checkpoint to go on from, the same on every rank, verified. StepError where the one asked for is none."""
    if resume == "never":
        ranks.main(lambda: _remove_all(folder))
        return None
    for candidate in ranks.main(lambda: checkpoint_folders(folder)):
        try:
            verify_checkpoint(candidate, ranks)
        except BrokenCheckpoint as broken:
            if ranks.is_main:
                print(f"not resuming from {candidate.name}, which is no whole checkpoint: {broken}", flush=True)
        else:
            return candidate
    if resume == "auto":
        return None
    named = Path(resume)
    if not ranks.main(named.is_dir):
        raise StepError(f"--resume {resume}: there is no such folder; auto, never or the folder of a checkpoint")
    verify_checkpoint(named, ranks)
    return named


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


def _remove_all(folder: Path) -> None:
    for checkpoint in checkpoint_folders(folder):
        print(f"--resume never: removing {checkpoint}", flush=True)
        remove_checkpoint(checkpoint)
