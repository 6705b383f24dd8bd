"""The files of a checkpoint's state: written by each rank, and read back by any engine at any world size.

Each holds pieces of flattened tensors, as safetensors.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the header's length, little-endian;
the header, a JSON object of `{name: {dtype, shape, data_offsets}}` and the strings of `__metadata__`; the tensors'
bytes without gaps. A piece is named `<key>[<start>:<stop>]`, and `__metadata__` has the whole shape of each key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch

from trainyard.settings.files import os_errors_name
from trainyard.steps.runtime.files import BLOCK_BYTES
from trainyard.steps.training.checkpoints.commit import BrokenCheckpoint
from trainyard.steps.training.fragments import Fragment
from trainyard.steps.training.models_without_weights import DTYPES_IN_FILES
from trainyard.steps.training.weights_to_files import file_header

RANDOM_PREFIX = "random/"
"""The prefix of keys that only one rank has: the state of its random number generators."""
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
    because all list the same fragments of those that they share.
    """
    own = [fragment for fragment in fragments if not fragment.is_replicated and fragment.copies == 1]
    for alike, number, ranks in _held_alike(fragments, rank, world_size):
        own += [share for writer, share in _shares(alike, ranks) if writer == number]
    return [fragment for fragment in own if fragment.values.numel() > 0]


def shares_of_others(fragments: Sequence[Fragment], world_size: int) -> Iterator[tuple[int, Fragment]]:
    """Yield all shares of what this rank is not alone to hold, with the number of the rank that writes it."""
    for alike, _, ranks in _held_alike(fragments, 0, world_size):
        yield from _shares(alike, ranks)


def _held_alike(fragments: Sequence[Fragment], rank: int, world_size: int) -> Iterator[tuple[list[Fragment], int, int]]:
    """Yield what all ranks hold, then what some do: the fragments, this rank's number among them, and how many."""
    yield [fragment for fragment in fragments if fragment.is_replicated], rank, world_size
    if copied := [fragment for fragment in fragments if fragment.copies > 1]:
        yield copied, copied[0].copy, copied[0].copies


def _shares(fragments: Sequence[Fragment], ranks: int) -> Iterator[tuple[int, Fragment]]:
    """Yield even shares of tensors laid end to end, with the numbers of their ranks; small tensors stay whole."""
    total_bytes = sum(fragment.values.nbytes for fragment in fragments)
    shares = max(1, min(ranks, total_bytes // _SMALL_BYTES))
    begins_bytes = 0
    for fragment in fragments:
        size_bytes, count = fragment.values.nbytes, fragment.values.numel()
        if 0 < size_bytes <= _SMALL_BYTES:
            yield (begins_bytes + size_bytes // 2) * shares // total_bytes, fragment
        elif size_bytes > _SMALL_BYTES:
            ends = (begins_bytes + size_bytes) * shares // total_bytes
            for number in range(begins_bytes * shares // total_bytes, ends + 1):
                bounds = (total_bytes * bound // shares - begins_bytes for bound in (number, number + 1))
                first, last = (min(max(bound, 0) // fragment.values.itemsize, count) for bound in bounds)
                if first < last:
                    yield number, fragment.part(first, last)
        begins_bytes += size_bytes


class SavedPiece(NamedTuple):
    """A range of a flattened tensor in a state file."""

    key: str
    start: int
    stop: int
    dtype: torch.dtype
    shape: str
    """Of the whole tensor, as in `__metadata__`."""
    offset_bytes: int
    """Where it begins in the file."""


def pieces_in(file: Path) -> list[SavedPiece]:
    """Return what a state file holds, in its order there. BrokenCheckpoint if it is not one."""
    try:
        with os_errors_name(file), file.open("rb") as stream:
            return parse_header(stream, os.fstat(stream.fileno()).st_size)
    except FileNotFoundError:
        raise BrokenCheckpoint(f"{file} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as failure:
        raise BrokenCheckpoint(f"{file} cannot be read: {failure!r}") from None


def parse_header(stream: BinaryIO, size_bytes: int) -> list[SavedPiece]:
    """Return what a state file of this size holds. ValueError, KeyError, TypeError and others if it is not one."""
    length_bytes = stream.read(8)
    end = len(length_bytes) + int.from_bytes(length_bytes, "little")
    if end > size_bytes:
        raise ValueError("the file ends within its header")
    entries = json.loads(stream.read(end - len(length_bytes)))
    shapes, found = entries.pop("__metadata__"), []
    for name, entry in entries.items():
        key, _, place = name.removesuffix("]").rpartition("[")
        start, stop = map(int, place.split(":"))
        piece = SavedPiece(key, start, stop, DTYPES_IN_FILES[entry["dtype"]], shapes[key], end)
        end += (stop - start) * piece.dtype.itemsize
        if not 0 <= start <= stop or end > size_bytes:
            raise ValueError(f"{name} is not within the file")
        found.append(piece)
    return found
