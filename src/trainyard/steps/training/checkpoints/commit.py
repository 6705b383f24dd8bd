"""commit.json: the file that makes a folder a checkpoint. Written last, in one write, with a digest of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainyard.settings.files import os_errors_name
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import make_names_durable, sha256_of_json, write_durably
from trainyard.steps.training.samples.plan import Progress

COMMIT_FILE = "commit.json"
CHECKPOINT_FORMAT = "trainyard.checkpoint/2"
_FORMAT_NAME = re.compile(r"trainyard\.checkpoint/(\d+)")
_OWN_DIGEST = "sha256"


class BrokenCheckpoint(StepError):
    """A folder that looks like a checkpoint but is not a complete one; the message says why."""


@dataclass(frozen=True)
class SavedFile:
    """The expected size and digest of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Commit:
    """The content of commit.json."""

    progress: Progress
    world_size: int
    engine: str
    identity: Mapping[str, Any]
    """What a resumed training must share with the one that was saved."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """The engine's state that is single numbers."""
    best_figure: float | None = None
    """The best value so far of the settings' `best_metric`, where the best checkpoint is kept."""
    is_best: bool = False
    """Whether this checkpoint has that figure."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What else the numbers depend on; it may change when a training is resumed."""
    new_weights: int | None = None
    """The version of the scheme that draws new weights, in the release that began the training, whether or not it drew
    any. None of a release before there was one."""
    went_back_to: str | None = None
    """The name of the sibling folder that --resume told its training to go back to."""
    files: Mapping[str, SavedFile] = field(default_factory=dict)
    """One per rank, in the order of ranks."""


def write_commit(folder: Path, commit: Commit) -> None:
    """Make the folder a checkpoint. Its files must be safely on disk by now."""
    document = asdict(commit)
    document = {"format": CHECKPOINT_FORMAT, **document.pop("progress"), **document}
    document[_OWN_DIGEST] = sha256_of_json(document)
    write_durably(folder / COMMIT_FILE, [(json.dumps(document, indent=1) + "\n").encode()])
    make_names_durable(folder)
    make_names_durable(folder.parent)


def read_commit(folder: Path) -> Commit:
    """Read commit.json. BrokenCheckpoint names what is missing or wrong; StepError refuses another version's.

    OSError if the file cannot be read, which says nothing about the checkpoint.
    """
    file = folder / COMMIT_FILE
    try:
        with os_errors_name(file):
            document = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise BrokenCheckpoint(f"{file} is missing: the save was interrupted") from None
    except (ValueError, RecursionError) as failure:
        raise BrokenCheckpoint(f"{file} cannot be read: {failure}") from None
    if not isinstance(document, dict):
        raise BrokenCheckpoint(f"{file} was not written by a training step")
    _refuse_another_version(folder, document)
    if document.pop(_OWN_DIGEST, None) != sha256_of_json(document):
        raise BrokenCheckpoint(f"{file} has changed since it was written: its SHA-256 differs")
    try:
        return _parse(document)
    except (KeyError, TypeError, AttributeError) as failure:
        raise BrokenCheckpoint(f"{file} was not written by a training step: {failure!r}") from None


def refuse_another_training(
    folder: Path, saved: Mapping[str, Any], now: Mapping[str, Any], defaults: Mapping[str, Any]
) -> None:
    """StepError if the checkpoint belongs to another training.

    What it does not say, since another step saved it, was at its default.
    """
    before = {name: saved.get(name, defaults.get(name)) for name in now}
    different = [f"{name} {before[name]!r} (now {value!r})" for name, value in now.items() if before[name] != value]
    if different:
        raise StepError(
            f"{folder} belongs to another training, with {'; '.join(different)}; "
            "start over with --resume never, which keeps these checkpoints aside"
        )


def changed_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a warning that names the settings that have changed, or None."""
    changed = [
        f"{name} was {saved[name]}, is now {now[name]}" for name in now if saved.get(name, now[name]) != now[name]
    ]
    if not changed:
        return None
    return f"warning: settings have changed since the checkpoint: {'; '.join(changed)}; continuing with the new ones"


def _parse(document: dict[str, Any]) -> Commit:
    fields = {name: document[name] for name in Commit.__dataclass_fields__ if name in document}
    progress = Progress(**{name: document[name] for name in Progress.__dataclass_fields__ if name in document})
    files = {name: SavedFile(**entry) for name, entry in document["files"].items()}
    return Commit(**{**fields, "progress": progress, "files": files})


def _refuse_another_version(folder: Path, document: dict[str, Any]) -> None:
    """Refuse other formats before the digest is compared, because the first version had none."""
    match = _FORMAT_NAME.fullmatch(str(document.get("format")))
    if match is None or document["format"] == CHECKPOINT_FORMAT:
        return
    age = "an older" if int(match[1]) < int(CHECKPOINT_FORMAT.rpartition("/")[2]) else "a newer"
    raise StepError(
        f"{folder} was written by {age} version of Trainyard ({document['format']}; this one reads "
        f"{CHECKPOINT_FORMAT}): continue with that version, or start over with --resume never, which keeps them aside"
    )
