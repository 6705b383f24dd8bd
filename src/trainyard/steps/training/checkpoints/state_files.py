"""What each rank's state file holds, and how: pieces of flattened tensors, as safetensors.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the header's length, little-endian;
the header, a JSON object of `{name: {dtype, shape, data_offsets}}` and the strings of `__metadata__`; the tensors'
bytes without gaps. A piece is named `<key>[<start>:<stop>]`, and `__metadata__` has the whole shape of each key.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from trainyard.steps.runtime.durable_files import BLOCK_BYTES
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.fragments import Fragment

_TYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_LENGTH_BYTES = 8
RANDOM_PREFIX = "random/"
"""The prefix of keys that only one rank has: the state of its random number generators."""
_SMALL_BYTES = 1 << 20
"""Tensors up to this size are not cut, and no share is smaller: small tensors stay together in few files."""


@dataclass(frozen=True)
class PieceName:
    """A piece's place in its tensor, as encoded in its name in the file."""

    key: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.key}[{self.start}:{self.stop}]"

    @classmethod
    def parse(cls, name: str) -> PieceName:
        """Return the inverse of `str`. ValueError for any other text."""
        key, _, place = name.removesuffix("]").rpartition("[")
        start, _, stop = place.partition(":")
        return cls(key, int(start), int(stop))


def state_file_name(rank: int) -> str:
    """Return the name of a rank's file."""
    return f"state-rank-{rank:05d}.safetensors"


def in_file_order(pieces: Sequence[Fragment]) -> list[Fragment]:
    """Return the pieces with wide types first, so that each is aligned to its type."""
    return sorted(pieces, key=lambda piece: -piece.values.itemsize)


def state_file_header(pieces: Sequence[Fragment]) -> bytes:
    """Return what precedes the bytes of the pieces, which follow in this order."""
    entries: dict[str, object] = {"__metadata__": {piece.key: shape_text(piece.shape) for piece in pieces}}
    end = 0
    for piece in pieces:
        name = str(PieceName(piece.key, piece.start, piece.stop))
        assert name not in entries, f"{name} occurs twice on one rank"
        start, end = end, end + piece.values.nbytes
        entries[name] = {
            "dtype": _type_name(piece),
            "shape": [piece.values.numel()],
            "data_offsets": [start, end],
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    # The format allows spaces; with these, the tensors begin at a block boundary.
    header += b" " * (-(_LENGTH_BYTES + len(header)) % BLOCK_BYTES)
    return struct.pack("<Q", len(header)) + header


def shape_text(shape: Sequence[int]) -> str:
    """Return a tensor's shape as in `__metadata__`: `64,3,7,7`; empty for a scalar."""
    return ",".join(map(str, shape))


def _type_name(piece: Fragment) -> str:
    try:
        return _TYPE_NAMES[piece.values.dtype]
    except KeyError:
        raise StepError(f"{piece.key} has the type {piece.values.dtype}, which checkpoints do not support") from None


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
