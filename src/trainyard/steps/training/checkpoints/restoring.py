"""Restores a checkpoint into an engine, whichever engine and however many ranks saved it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.checkpoints.commit import BrokenCheckpoint, Commit
from trainyard.steps.training.checkpoints.state_files import RANDOM_PREFIX, PieceName, shape_text
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.fragments import Fragment
from trainyard.steps.training.randomness import restore_random_state, seed_everything

_NAMED_KEYS = 3


def restore_engine(folder: Path, commit: Commit, engine: Engine, ranks: Ranks) -> None:
    """Restore all state of the engine. StepError, on every rank, names a tensor that cannot be restored."""
    ranks.each(lambda: engine.prepare_to_restore(folder, list(commit.files)))
    fragments = engine.state()
    _require_same_keys(folder, list(commit.files), fragments, ranks)
    reader = StateReader(folder, _nearest_first(list(commit.files), ranks))

    def read() -> None:
        for fragment in fragments:
            reader.read_into(fragment)

    ranks.each(read)
    engine.fragments_restored()
    engine.restore_scalars(commit.scalars)


def restore_randomness(folder: Path, commit: Commit, ranks: Ranks, device: torch.device, seed: int) -> None:
    """Restore this rank's random state; at another world size, seed it from seed, step and rank."""
    if commit.world_size == ranks.size:
        saved = read_whole(folder / list(commit.files)[ranks.rank], RANDOM_PREFIX)
        restore_random_state(saved, device)
    else:
        seed_everything(seed + commit.progress.step * ranks.size + ranks.rank)


def _require_same_keys(folder: Path, files: Sequence[str], fragments: Sequence[Fragment], ranks: Ranks) -> None:
    """Refuse missing and extra keys alike: a part of what was learnt must not be dropped silently."""

    def saved_keys() -> set[str]:
        found = {key for name in files[ranks.rank :: ranks.size] for key in keys_in(folder / name)}
        return {key for key in found if not key.startswith(RANDOM_PREFIX)}

    def own_keys() -> set[str]:
        return {fragment.key for fragment in fragments if math.prod(fragment.shape) > 0}

    saved, own = (_of_all_ranks(keys, ranks) for keys in (saved_keys, own_keys))
    if saved != own:
        lacks = _listed("lacks {}", own - saved)
        has = _listed("has {}, which this model does not have", saved - own)
        raise StepError(f"{folder} does not fit this model: it {' and '.join(filter(None, (lacks, has)))}")


def _of_all_ranks(keys: Callable[[], set[str]], ranks: Ranks) -> set[str]:
    """Return the keys of all ranks. Usually all have the same, as a digest shows; else each sends its own."""
    own: set[str] = set()

    def digest() -> str:
        own.update(keys())
        return hashlib.sha256("\n".join(sorted(own)).encode()).hexdigest()

    if len(set(ranks.each(digest))) == 1:
        return own
    return set().union(*ranks.each(lambda: own))


def _listed(text: str, keys: set[str]) -> str:
    """Return a text with the first few keys and how many more there are."""
    more = f" and {len(keys) - _NAMED_KEYS} more" if len(keys) > _NAMED_KEYS else ""
    return text.format(", ".join(sorted(keys)[:_NAMED_KEYS]) + more) if keys else ""


def _nearest_first(files: Sequence[str], ranks: Ranks) -> list[str]:
    """Return the files that this rank most likely needs first: its own, rank 0's with small tensors, neighbours'."""
    own = ranks.rank * len(files) // ranks.size
    by_distance = sorted(range(len(files)), key=lambda index: abs(index - own))
    return [files[index] for index in dict.fromkeys([own, 0, *by_distance])]


@dataclass
class _SavedTensor:
    """The pieces of one tensor found so far."""

    shape: str
    pieces: list[tuple[int, int, Any]] = field(default_factory=list)
    """Start, stop, and the slice of the file."""

    def from_position(self, position: int) -> tuple[int, int, Any] | None:
        """Return a piece that holds this element, or None."""
        return next((piece for piece in self.pieces if piece[0] <= position < piece[1]), None)


class StateReader:
    """Reads any range of any tensor of a checkpoint, opening no more state files than needed.

    Files are opened in the order given: with the nearest first, a rank that continues with what it had opens little
    more than its own file. That matters where opening a file downloads it from a blob store.
    """

    def __init__(self, folder: Path, file_names: Sequence[str]) -> None:
        self._folder = folder
        self._unopened = list(file_names)
        self._tensors: dict[str, _SavedTensor] = {}

    def read_into(self, fragment: Fragment) -> None:
        """Fill a fragment. StepError if its shape or type differs; BrokenCheckpoint if elements are missing."""
        position = fragment.start
        while position < fragment.stop:
            saved, start, stop, file_slice = self._find(fragment.key, position)
            if saved.shape != shape_text(fragment.shape):
                raise StepError(
                    f"{self._folder}: {fragment.key} has the shape ({saved.shape}), but "
                    f"({shape_text(fragment.shape)}) in this model"
                )
            end = min(stop, fragment.stop)
            values = file_slice[position - start : end - start]
            if values.dtype != fragment.values.dtype:
                raise StepError(
                    f"{self._folder}: {fragment.key} has the type {values.dtype}, but "
                    f"{fragment.values.dtype} in this training"
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
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            piece = PieceName.parse(name)
            saved = self._tensors.setdefault(piece.key, _SavedTensor(shapes[piece.key]))
            saved.pieces.append((piece.start, piece.stop, file.get_slice(name)))


def open_state_file(file: Path) -> Any:
    """Map a safetensors file into memory. BrokenCheckpoint if it is not one."""
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as failure:
        raise BrokenCheckpoint(f"{file} cannot be read: {failure}") from None


def keys_in(file: Path) -> set[str]:
    """Return the keys of which a state file holds a piece."""
    return {PieceName.parse(name).key for name in open_state_file(file).keys()}  # noqa: SIM118 (not a mapping)


def read_whole(file: Path, prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one file under a prefix, by the rest of their keys, flat as they were saved."""
    opened = open_state_file(file)
    names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118 (not a mapping)
    return {PieceName.parse(name).key.removeprefix(prefix): opened.get_tensor(name) for name in names}
