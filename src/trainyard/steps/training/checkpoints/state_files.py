"""How a rank's state lies in its file: pieces of flattened tensors, as safetensors.

The format (https://github.com/huggingface/safetensors#format): eight bytes with the header's length, little-endian;
the header, a JSON object of `{name: {dtype, shape, data_offsets}}` and the strings of `__metadata__`; the tensors'
bytes without gaps. A piece is named `<key>[<start>:<stop>]`, and `__metadata__` has the whole shape of each key.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.checkpoints.durable_files import BLOCK_BYTES
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
"""Before the keys of what each rank has for itself: the state of its random number generators."""


@dataclass(frozen=True)
class PieceName:
    """A piece's place in its tensor, as its name in the file tells it."""

    key: str
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.key}[{self.start}:{self.stop}]"

    @classmethod
    def parse(cls, name: str) -> PieceName:
        """The inverse of `str`; ValueError for what is no such name."""
        key, _, place = name.removesuffix("]").rpartition("[")
        start, _, stop = place.partition(":")
        return cls(key, int(start), int(stop))


def state_file_name(rank: int) -> str:
    """The file of a rank."""
    return f"state-rank-{rank:05d}.safetensors"


def in_file_order(pieces: Sequence[Fragment]) -> list[Fragment]:
    """Wide types first, so that every piece is aligned to its type."""
    return sorted(pieces, key=lambda piece: -piece.values.itemsize)


def state_file_header(pieces: Sequence[Fragment]) -> bytes:
    """What stands in the file before the bytes of the pieces, which follow in this order."""
    entries: dict[str, object] = {"__metadata__": {piece.key: shape_text(piece.shape) for piece in pieces}}
    end = 0
    for piece in pieces:
        name = str(PieceName(piece.key, piece.start, piece.stop))
        assert name not in entries, f"{name} twice on one rank"
        start, end = end, end + piece.values.nbytes
        entries[name] = {
            "dtype": _type_name(piece),
            "shape": [piece.values.numel()],
            "data_offsets": [start, end],
        }
    header = json.dumps(entries, separators=(",", ":")).encode()
    # The format allows spaces; with these, the tensors begin at a block's beginning.
    header += b" " * (-(_LENGTH_BYTES + len(header)) % BLOCK_BYTES)
    return struct.pack("<Q", len(header)) + header


def shape_text(shape: Sequence[int]) -> str:
    """A tensor's shape as `__metadata__` has it: `64,3,7,7`; nothing for a single number."""
    return ",".join(map(str, shape))


def _type_name(piece: Fragment) -> str:
    try:
        return _TYPE_NAMES[piece.values.dtype]
    except KeyError:
        raise StepError(f"{piece.key} is of {piece.values.dtype}, which checkpoints cannot hold") from None
