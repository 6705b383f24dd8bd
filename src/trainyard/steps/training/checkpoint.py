"""Checkpoints that are whole or are none.

A checkpoint is a folder `step-00000100` with the engine's files, each rank's random state, and `commit.json`, which
is written last and names every file with its size and digest. Without it, or with one that does not match, a folder
is not a checkpoint. Nothing is renamed: blob storage cannot rename a folder in one piece.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainyard.steps.dataset.manifest import file_sha256
from trainyard.steps.errors import StepError
from trainyard.steps.file_errors import errors_name
from trainyard.steps.json_files import read_json_object
from trainyard.steps.training.determinism import seed_everything
from trainyard.steps.training.engines.base import Engine
from trainyard.steps.training.random_state import random_state, restore_random_state
from trainyard.steps.training.tensor_files import read_tensors, write_tensors
from trainyard.steps.training.world import World

COMMIT_FILE = "commit.json"
CHECKPOINT_FORMAT = "trainyard.checkpoint/1"
_FOLDER_NAME = re.compile(r"step-(\d{8,})")


class BrokenCheckpoint(StepError):
    """A folder that looks like a checkpoint and is not one; the message says why."""


@dataclass(frozen=True)
class Progress:
    """How far a training has come: what must be known, besides tensors, to go on. Epochs count from 1."""

    step: int = 0
    epoch: int = 1
    samples_consumed: int = 0
    skipped_steps: int = 0


@dataclass(frozen=True)
class Commit:
    """What commit.json says. `identity` is what a resumed training must share with the one that was saved."""

    progress: Progress
    world_size: int
    engine: str
    identity: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]


class Checkpoints:
    """The checkpoints of one training, in one folder; keeps the last `keep`. Every rank calls every method."""

    def __init__(self, folder: Path, world: World, keep: int, identity: Mapping[str, Any]) -> None:
        self._folder, self._world, self._keep = folder, world, keep
        self._identity = identity

    def save(self, engine: Engine, progress: Progress) -> Path:
        """Write and commit a checkpoint; returns once it is committed."""
        folder = self._folder / f"step-{progress.step:08d}"
        if self._world.is_main:
            _remove(folder)
            folder.mkdir(parents=True)
        self._world.wait_for_all()
        random_file = folder / _random_file_name(self._world.rank)
        write_tensors(random_file, random_state(self._world.device))
        written = {file.name: _settle(file) for file in [*engine.save(folder), random_file]}
        files: dict[str, tuple[int, str]] = {}
        for of_rank in self._world.gather(written):
            files |= of_rank
        if self._world.is_main:
            _commit(folder, Commit(progress, self._world.size, engine.name, self._identity, files))
            self._remove_old(folder)
        self._world.wait_for_all()
        return folder

    def choose(self, resume: str) -> Path | None:
        """The checkpoint to go on from, which rank 0 finds and verifies. StepError where the one asked for is none."""
        found = self._find_or_mistake(resume) if self._world.is_main else None
        choice = self._world.from_main(found)
        if isinstance(choice, StepError):
            raise choice
        return choice

    def load(self, folder: Path, engine: Engine, seed: int) -> Progress:
        """Restore everything from a committed checkpoint."""
        commit = read_commit(folder)
        if commit.engine != engine.name:
            raise StepError(f"{folder} was saved by the engine {commit.engine}; this is {engine.name}")
        _refuse_another_training(folder, commit.identity, self._identity)
        engine.load(folder)
        random_file = folder / _random_file_name(self._world.rank)
        if random_file.is_file() and commit.world_size == self._world.size:
            restore_random_state(read_tensors(random_file, torch.device("cpu")), self._world.device)
        else:
            # Another world size: no saved state is this rank's own, so it gets one that depends on seed, step and rank.
            seed_everything(seed + commit.progress.step * self._world.size + self._world.rank)
        return commit.progress

    def _find_or_mistake(self, resume: str) -> Path | StepError | None:
        """A mistake is given, not raised, so that every rank hears of it."""
        try:
            return self._find(resume)
        except StepError as mistake:
            return mistake

    def _find(self, resume: str) -> Path | None:
        if resume == "never":
            for folder in checkpoint_folders(self._folder):
                print(f"--resume never: removing {folder}", flush=True)
                _remove(folder)
            return None
        newest = self._newest_sound()
        if newest is not None or resume == "auto":
            return newest
        named = Path(resume)
        if not named.is_dir():
            raise StepError(f"--resume {resume}: there is no such folder; auto, never or the folder of a checkpoint")
        verify_checkpoint(named)
        return named

    def _newest_sound(self) -> Path | None:
        for folder in checkpoint_folders(self._folder):
            try:
                verify_checkpoint(folder)
            except BrokenCheckpoint as broken:
                print(f"not resuming from {folder.name}, which is no whole checkpoint: {broken}", flush=True)
            else:
                return folder
        return None

    def _remove_old(self, newest: Path) -> None:
        """Keep the last few; whatever else is there and older, or left by an attempt that was cut off, goes."""
        folders = checkpoint_folders(self._folder)
        up_to_newest = folders[folders.index(newest) :]
        kept = [folder for folder in up_to_newest if (folder / COMMIT_FILE).is_file()][: self._keep]
        for folder in folders:
            if folder not in kept:
                _remove(folder)


def checkpoint_folders(folder: Path) -> list[Path]:
    """What looks like a checkpoint, the newest step first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), child) for child in folder.iterdir() if (match := _FOLDER_NAME.fullmatch(child.name))]
    return [child for _, child in sorted(found, reverse=True)]


def read_commit(folder: Path) -> Commit:
    """Read commit.json. BrokenCheckpoint says what is missing or wrong."""
    file = folder / COMMIT_FILE
    if not file.is_file():
        raise BrokenCheckpoint(f"{file} is missing: saving was cut off")
    try:
        document = read_json_object(file, CHECKPOINT_FORMAT)
        progress = Progress(**{name: document[name] for name in Progress.__dataclass_fields__})
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in document["files"].items()}
        return Commit(progress, document["world_size"], document["engine"], document["identity"], files)
    except StepError as mistake:
        raise BrokenCheckpoint(str(mistake)) from None
    except (KeyError, TypeError, AttributeError) as failure:
        raise BrokenCheckpoint(f"{file} is not what a training step wrote: {failure!r}") from None


def verify_checkpoint(folder: Path) -> None:
    """Hold every file of a checkpoint to its size and digest. BrokenCheckpoint names the first that does not match."""
    for name, (size_bytes, sha256) in read_commit(folder).files.items():
        file = folder / name
        if not file.is_file():
            raise BrokenCheckpoint(f"{file} is missing")
        if file.stat().st_size != size_bytes:
            raise BrokenCheckpoint(f"{file} has {file.stat().st_size} bytes instead of {size_bytes}")
        if file_sha256(file) != sha256:
            raise BrokenCheckpoint(f"{file} is not what was written: its SHA-256 differs")


def _random_file_name(rank: int) -> str:
    return f"random-state-rank-{rank:05d}.safetensors"


def _settle(file: Path) -> tuple[int, str]:
    """Force a file to disk, and give its size and digest."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return file.stat().st_size, file_sha256(file)


def _commit(folder: Path, commit: Commit) -> None:
    document = {
        "format": CHECKPOINT_FORMAT,
        **asdict(commit.progress),
        "world_size": commit.world_size,
        "engine": commit.engine,
        "identity": dict(commit.identity),
        "files": {name: {"bytes": size, "sha256": sha256} for name, (size, sha256) in sorted(commit.files.items())},
    }
    file = folder / COMMIT_FILE
    with errors_name(file), file.open("w", encoding="utf-8") as stream:
        json.dump(document, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())


def _remove(folder: Path) -> None:
    """The commit goes first, so that a removal which is cut off leaves no checkpoint."""
    (folder / COMMIT_FILE).unlink(missing_ok=True)
    if folder.is_dir():
        shutil.rmtree(folder)


def _refuse_another_training(folder: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    different = [f"{name} {saved.get(name)!r}, now {now[name]!r}" for name in now if saved.get(name) != now[name]]
    if different:
        raise StepError(
            f"{folder} belongs to another training: it had {'; '.join(different)}. "
            "--resume never starts anew (and removes the checkpoints that are there)."
        )
