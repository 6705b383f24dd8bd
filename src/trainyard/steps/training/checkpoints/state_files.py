"""The files of a checkpoint's state: written by each rank, and read back by any engine at any world size.

Each holds pieces of flattened tensors, as safetensors.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the header's length, little-endian;
the header, a JSON object of `{name: {dtype, shape, data_offsets}}` and the strings of `__metadata__`; the tensors'
bytes without gaps. A piece is named `<key>[<start>:<stop>]`, and `__metadata__` has the whole shape of each key.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import BLOCK_BYTES
from trainyard.steps.training.checkpoints.collectives import Ranks
from trainyard.steps.training.checkpoints.commit import BrokenCheckpoint, Commit
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.fragments import Fragment
from trainyard.steps.training.randomness import restore_random_state, seed_everything
from trainyard.steps.training.weights_to_files import file_header

RANDOM_PREFIX = "random/"
"""The prefix of keys that only one rank has: the state of its random number generators."""
_NAMED_KEYS = 3
_SMALL_BYTES = 1 << 20
"""Tensors up to this size are not cut, and no share is smaller: small tensors stay together in few files."""


def state_file_name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"state-rank-{rank:05d}.safetensors"


def in_file_order(pieces: Sequence[Fragment]) -> list[Fragment]:
    """Return the pieces with wide types first, so that each is aligned to its type."""
    return sorted(pieces, key=lambda piece: -piece.values.itemsize)


def state_file_header(pieces: Sequence[Fragment]) -> bytes:
    """Return what precedes the bytes of the pieces, which follow in this order."""
    return file_header(
        {piece.key: shape_text(piece.shape) for piece in pieces},
        [(f"{piece.key}[{piece.start}:{piece.stop}]", piece.values.dtype, (piece.values.numel(),)) for piece in pieces],
        BLOCK_BYTES,
    )


def shape_text(shape: Sequence[int]) -> str:
    """Return a tensor's shape as in `__metadata__`: `64,3,7,7`; empty for a scalar."""
    return ",".join(map(str, shape))


def share_to_write(fragments: Sequence[Fragment], rank: int, world_size: int) -> list[Fragment]:
    """Return the pieces that this rank writes: what only it holds, and its share of what others hold too.

    Over all ranks, the pieces hold every element once. Every rank computes the same shares without communication,
    because all list the same replicated fragments.
    """
    parts = [fragment for fragment in fragments if not fragment.is_replicated]
    own = [part if part.copies == 1 else _share_of_copies(number, part) for number, part in enumerate(parts)]
    replicated = [fragment for fragment in fragments if fragment.is_replicated]
    shares = max(1, min(world_size, sum(fragment.values.nbytes for fragment in replicated) // _SMALL_BYTES))
    if rank < shares:
        cuts = _cuts([fragment.values.nbytes for fragment in replicated], shares)
        own += _between(replicated, cuts[rank], cuts[rank + 1])
    return [fragment for fragment in own if fragment.values.numel() > 0]


def _share_of_copies(number: int, fragment: Fragment) -> Fragment:
    """Return this copy's share of a range that several ranks hold; a small one is written by one of them in turn."""
    count = fragment.values.numel()
    if fragment.values.nbytes <= _SMALL_BYTES:
        first, last = 0, count if number % fragment.copies == fragment.copy else 0
    else:
        first, last = (count * bound // fragment.copies for bound in (fragment.copy, fragment.copy + 1))
    return replace(fragment, start=fragment.start + first, values=fragment.values[first:last])


def _cuts(sizes_bytes: Sequence[int], shares: int) -> list[int]:
    """Return the bounds of even shares of tensors laid end to end, moved to the nearest end of a small tensor."""
    total = sum(sizes_bytes)
    cuts, start, share = [0], 0, 1
    for size in sizes_bytes:
        while share < shares and total * share // shares < start + size:
            cut = total * share // shares
            if size <= _SMALL_BYTES:
                cut = start if cut - start < size / 2 else start + size
            cuts.append(cut)
            share += 1
        start += size
    return [*cuts, total]


def _between(fragments: Sequence[Fragment], low: int, high: int) -> list[Fragment]:
    """Return what lies between two bounds in bytes, rounded down to whole elements."""
    pieces, offset = [], 0
    for fragment in fragments:
        width, count = fragment.values.itemsize, fragment.values.numel()
        first, last = (min(max(bound - offset, 0) // width, count) for bound in (low, high))
        if first < last:
            pieces.append(replace(fragment, start=fragment.start + first, values=fragment.values[first:last]))
        offset += fragment.values.nbytes
    return pieces


def restore_engine(folder: Path, commit: Commit, engine: Engine, ranks: Ranks) -> None:
    """Restore all state of the engine. StepError, on every rank, names a tensor that cannot be restored."""
    ranks.each(lambda: engine.prepare_to_restore(folder, list(commit.files)))
    fragments = engine.state()
    _require_same_keys(folder, list(commit.files), fragments, ranks)
    reader = StateReader(folder, nearest_first(list(commit.files), ranks.rank, ranks.size))

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


def nearest_first(files: Sequence[str], rank: int, ranks: int) -> list[str]:
    """Return the files that a rank most likely needs first: its own, rank 0's with small tensors, neighbours'."""
    own = rank * len(files) // ranks
    by_distance = sorted(range(len(files)), key=lambda index: abs(index - own))
    return [files[index] for index in dict.fromkeys([own, 0, *by_distance])]


@dataclass
class SavedTensor:
    """The pieces of one tensor found so far."""

    shape: str
    pieces: list[tuple[int, int, Any]] = field(default_factory=list)
    """Start, stop, and the slice of the file."""


class StateReader:
    """Reads any range of any tensor of a checkpoint, opening no more state files than needed.

    Files are opened in the order given: with the nearest first, a rank that continues with what it had opens little
    more than its own file. That matters where opening a file downloads it from a blob store.
    """

    def __init__(self, folder: Path, file_names: Sequence[str]) -> None:
        self._folder = folder
        self._unopened = list(file_names)
        self._tensors: dict[str, SavedTensor] = {}

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

    def _find(self, key: str, position: int) -> tuple[SavedTensor, int, int, Any]:
        while True:
            if (saved := self._tensors.get(key)) is not None:
                for start, stop, file_slice in saved.pieces:
                    if start <= position < stop:
                        return saved, start, stop, file_slice
            if not self._unopened:
                raise BrokenCheckpoint(f"{self._folder} lacks {key} from element {position} on")
            self._open(self._unopened.pop(0))

    def _open(self, file_name: str) -> None:
        file = open_state_file(self._folder / file_name)
        shapes = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            key, start, stop = _parse_piece_name(name)
            saved = self._tensors.setdefault(key, SavedTensor(shapes[key]))
            saved.pieces.append((start, stop, file.get_slice(name)))


def open_state_file(file: Path) -> Any:
    """Map a safetensors file into memory. BrokenCheckpoint if it is not one."""
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as failure:
        raise BrokenCheckpoint(f"{file} cannot be read: {failure}") from None


def keys_in(file: Path) -> set[str]:
    """Return the keys of which a state file holds a piece."""
    return {_parse_piece_name(name)[0] for name in open_state_file(file).keys()}  # noqa: SIM118 (not a mapping)


def read_whole(file: Path, prefix: str) -> dict[str, torch.Tensor]:
    """Return the tensors of one file under a prefix, by the rest of their keys, flat as they were saved."""
    opened = open_state_file(file)
    names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118 (not a mapping)
    return {_parse_piece_name(name)[0].removeprefix(prefix): opened.get_tensor(name) for name in names}


def _parse_piece_name(name: str) -> tuple[str, int, int]:
    """Return a piece's key, and where it starts and stops in the flattened tensor."""
    key, _, place = name.removesuffix("]").rpartition("[")
    start, _, stop = place.partition(":")
    return key, int(start), int(stop)
