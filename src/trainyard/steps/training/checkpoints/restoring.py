"""A checkpoint back into an engine, whichever engine and however many ranks it was saved by."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.checkpoints.commit import BrokenCheckpoint, Commit
from trainyard.steps.training.checkpoints.state_files import RANDOM_PREFIX, PieceName, shape_text
from trainyard.steps.training.engines.base import Engine
from trainyard.steps.training.fragments import Fragment
from trainyard.steps.training.randomness import restore_random_state, seed_everything

_NAMED_KEYS = 3


def refuse_another_training(folder: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """StepError when the checkpoint's identity is not this training's."""
    different = [f"{name} {saved.get(name)!r}, now {now[name]!r}" for name in now if saved.get(name) != now[name]]
    if different:
        raise StepError(
            f"{folder} belongs to another training: it had {'; '.join(different)}. "
            "--resume never starts anew, and sets the checkpoints aside."
        )


def changed_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What is said of settings that are not as they were; None when all are."""
    changed = [f"{name} {saved[name]}, now {now[name]}" for name in now if saved.get(name, now[name]) != now[name]]
    if not changed:
        return None
    return (
        f"warning: the checkpoint was made with other settings: it had {'; '.join(changed)}. The training goes on so."
    )


def restore_engine(folder: Path, commit: Commit, engine: Engine, ranks: Ranks) -> None:
    """Fill all state of the engine. Raises on every rank, naming the tensor, when that cannot be."""
    fragments = engine.fragments()
    _require_same_keys(folder, list(commit.files), fragments, ranks)
    reader = StateReader(folder, _nearest_first(list(commit.files), ranks))

    def read() -> None:
        for fragment in fragments:
            reader.read_into(fragment)

    ranks.each(read)
    engine.fragments_restored()
    engine.restore_scalars(commit.scalars)


def restore_randomness(folder: Path, commit: Commit, ranks: Ranks, device: torch.device, seed: int) -> None:
    """Each rank's own random state; at another world size, where none is its own, one from seed, step and rank."""
    if commit.world_size == ranks.size:
        saved = read_whole(folder / list(commit.files)[ranks.rank], RANDOM_PREFIX)
        restore_random_state(saved, device)
    else:
        seed_everything(seed + commit.progress.step * ranks.size + ranks.rank)


def _require_same_keys(folder: Path, files: Sequence[str], fragments: Sequence[Fragment], ranks: Ranks) -> None:
    """Extra keys are refused like missing ones: to drop a part of what was learnt in silence is no resuming."""

    def saved_keys() -> set[str]:
        found = {key for name in files[ranks.rank :: ranks.size] for key in keys_in(folder / name)}
        return {key for key in found if not key.startswith(RANDOM_PREFIX)}

    def wanted_keys() -> set[str]:
        return {fragment.key for fragment in fragments if math.prod(fragment.shape) > 0}

    saved, wanted = (_of_all_ranks(keys, ranks) for keys in (saved_keys, wanted_keys))
    if saved != wanted:
        lacks = _listed("lacks {}", wanted - saved)
        has = _listed("has {}, which this model does not have", saved - wanted)
        raise StepError(f"{folder} does not fit this model: it {' and '.join(filter(None, (lacks, has)))}")


def _of_all_ranks(keys: Callable[[], set[str]], ranks: Ranks) -> set[str]:
    """What any rank has. Mostly all have the same, as a digest tells; else each sends its own."""
    own: set[str] = set()

    def digest() -> str:
        own.update(keys())
        return hashlib.sha256("\n".join(sorted(own)).encode()).hexdigest()

    if len(set(ranks.each(digest))) == 1:
        return own
    return set().union(*ranks.each(lambda: own))


def _listed(text: str, keys: set[str]) -> str:
    """The first few keys in a text, and how many more there are."""
    more = f" and {len(keys) - _NAMED_KEYS} more" if len(keys) > _NAMED_KEYS else ""
    return text.format(", ".join(sorted(keys)[:_NAMED_KEYS]) + more) if keys else ""


def _nearest_first(files: Sequence[str], ranks: Ranks) -> list[str]:
    """The file of the rank that had this rank's place, then rank 0's, which has what is small, then the neighbours'."""
    own = ranks.rank * len(files) // ranks.size
    by_distance = sorted(range(len(files)), key=lambda index: abs(index - own))
    return [files[index] for index in dict.fromkeys([own, 0, *by_distance])]


@dataclass
class _SavedTensor:
    """The pieces of one tensor that were found so far."""

    shape: str
    pieces: list[tuple[int, int, Any]] = field(default_factory=list)
    """Start, stop, and what reads from the file."""

    def from_position(self, position: int) -> tuple[int, int, Any] | None:
        """A piece that holds this element."""
        return next((piece for piece in self.pieces if piece[0] <= position < piece[1]), None)


class StateReader:
    """Reads a checkpoint's state files, and only as many of them as hold what is asked for.

    They are opened in the order given: with the nearest first, a rank that goes on with what it had opens little
    else than its own file, which counts where opening a file fetches it whole from a blob store.
    """

    def __init__(self, folder: Path, file_names: Sequence[str]) -> None:
        self._folder = folder
        self._unopened = list(file_names)
        self._tensors: dict[str, _SavedTensor] = {}

    def read_into(self, fragment: Fragment) -> None:
        """Fill a fragment. StepError when the tensor's shape or type is another; BrokenCheckpoint for what lacks."""
        position = fragment.start
        while position < fragment.stop:
            saved, start, stop, file_slice = self._find(fragment.key, position)
            if saved.shape != shape_text(fragment.shape):
                raise StepError(
                    f"{self._folder}: {fragment.key} has the shape ({saved.shape}), "
                    f"in this model ({shape_text(fragment.shape)})"
                )
            end = min(stop, fragment.stop)
            values = file_slice[position - start : end - start]
            if values.dtype != fragment.values.dtype:
                raise StepError(
                    f"{self._folder}: {fragment.key} is of {values.dtype}, in this training of {fragment.values.dtype}"
                )
            fragment.values[position - fragment.start : end - fragment.start].copy_(values)
            position = end

    def _find(self, key: str, position: int) -> tuple[_SavedTensor, int, int, Any]:
        while True:
            saved = self._tensors.get(key)
            if saved is not None and (piece := saved.from_position(position)) is not None:
                return saved, *piece
            if not self._unopened:
                raise BrokenCheckpoint(f"{self._folder} lacks {key} from element {position} on")
            self._open(self._unopened.pop(0))

    def _open(self, file_name: str) -> None:
        file = open_state_file(self._folder / file_name)
        shapes = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118 (it is no mapping)
            piece = PieceName.parse(name)
            saved = self._tensors.setdefault(piece.key, _SavedTensor(shapes[piece.key]))
            saved.pieces.append((piece.start, piece.stop, file.get_slice(name)))


def open_state_file(file: Path) -> Any:
    """Map a file of safetensors. BrokenCheckpoint when it is none."""
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as failure:
        raise BrokenCheckpoint(f"{file} cannot be read: {failure}") from None


def keys_in(file: Path) -> set[str]:
    """The keys that a state file holds a piece of."""
    return {PieceName.parse(name).key for name in open_state_file(file).keys()}  # noqa: SIM118 (it is no mapping)


def read_whole(file: Path, prefix: str) -> dict[str, torch.Tensor]:
    """The tensors of one file whose key starts so, by the rest of their keys, each as flat as it was saved."""
    opened = open_state_file(file)
    names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118 (it is no mapping)
    return {PieceName.parse(name).key.removeprefix(prefix): opened.get_tensor(name) for name in names}
