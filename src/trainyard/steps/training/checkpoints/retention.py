"""Which checkpoints stay, and how the others go."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

from trainyard.steps.runtime.entrypoint import describe_os_error
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.commit import COMMIT_FILE, read_commit

_FOLDER_NAME = re.compile(r"step-\d{8,}")


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return folder / f"step-{step:08d}"


def is_checkpoint_name(name: str) -> bool:
    """Whether a folder of this name is meant to be a checkpoint."""
    return _FOLDER_NAME.fullmatch(name) is not None


def checkpoint_folders(folder: Path) -> list[Path]:
    """What looks like a checkpoint, the newest step first."""
    if not folder.is_dir():
        return []
    found = [child for child in folder.iterdir() if is_checkpoint_name(child.name)]
    return sorted(found, key=_step, reverse=True)


def keep_newest_and_best(newest: Path, keep: int, *, keep_best: bool) -> None:
    """Keep the last few and the best up to `newest`, which was committed just now.

    Whatever else is there goes: older ones, what an attempt that was cut off left, and later steps of an attempt that
    this training did not go on from. What cannot be done is said, and tried again after the next checkpoint.
    """
    try:
        no_longer_kept = _no_longer_kept(newest, keep, keep_best=keep_best)
    except OSError as failure:
        # Nothing goes before it is known what must stay.
        print(f"warning: old checkpoints cannot be looked at, and stay: {describe_os_error(failure)}", flush=True)
        return
    for folder in no_longer_kept:
        try:
            remove_checkpoint(folder)
        except OSError as failure:
            print(f"warning: an old checkpoint cannot be removed: {describe_os_error(failure)}", flush=True)


def remove_checkpoint(folder: Path) -> None:
    """Remove a folder. The commit goes first, so that a removal which is cut off leaves no checkpoint."""
    (folder / COMMIT_FILE).unlink(missing_ok=True)
    if folder.is_dir():
        shutil.rmtree(folder)


def set_aside(folder: Path) -> None:
    """Move all checkpoints into a folder of their own beside them, where no training looks for them unasked."""
    found = checkpoint_folders(folder)
    if not any((checkpoint / COMMIT_FILE).is_file() for checkpoint in found):
        return
    aside = next(path for number in itertools.count(1) if not (path := folder / f"set-aside-{number}").exists())
    aside.mkdir()
    for checkpoint in found:
        checkpoint.rename(aside / checkpoint.name)
    print(f"--resume never: the checkpoints that were there now lie in {aside}", flush=True)


def _no_longer_kept(newest: Path, keep: int, *, keep_best: bool) -> list[Path]:
    others = [folder for folder in checkpoint_folders(newest.parent) if folder != newest]
    earlier = [folder for folder in others if _step(folder) < _step(newest) and (folder / COMMIT_FILE).is_file()]
    kept = [newest, *earlier][:keep]
    if keep_best:
        kept += [folder for folder in (newest, *earlier) if _is_best(folder)][:1]
    return [folder for folder in others if folder not in kept]


def _is_best(folder: Path) -> bool:
    """Each best one is better than those before it: the newest that is marked so is the best of all."""
    try:
        return read_commit(folder).is_best
    except StepError:
        return False


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))
