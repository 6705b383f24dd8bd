"""Which part of the state each rank writes: what only it has, and its share of what every rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainyard.steps.training.fragments import Fragment

_SMALL_BYTES = 1 << 20
"""Tensors up to this size are not cut, and no rank is given less: small things stay together in few files."""


def own_part(fragments: Sequence[Fragment], rank: int, world_size: int) -> list[Fragment]:
    """The pieces for one rank to write. Over all ranks, they hold every element once.

    Every rank comes to the same division without asking, because all list the same replicated fragments.
    """
    own = [fragment for fragment in fragments if not fragment.is_replicated]
    replicated = [fragment for fragment in fragments if fragment.is_replicated]
    shares = max(1, min(world_size, sum(fragment.values.nbytes for fragment in replicated) // _SMALL_BYTES))
    if rank < shares:
        cuts = _cuts([fragment.values.nbytes for fragment in replicated], shares)
        own += _between(replicated, cuts[rank], cuts[rank + 1])
    return [fragment for fragment in own if fragment.values.numel() > 0]


def _cuts(sizes_bytes: Sequence[int], shares: int) -> list[int]:
    """The bounds of even shares of tensors laid end to end, moved to the nearest end of a small tensor they fall in."""
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
    """What lies between two bounds in bytes, rounded down to whole elements."""
    pieces, offset = [], 0
    for fragment in fragments:
        width, count = fragment.values.itemsize, fragment.values.numel()
        first, last = (min(max(bound - offset, 0) // width, count) for bound in (low, high))
        if first < last:
            pieces.append(replace(fragment, start=fragment.start + first, values=fragment.values[first:last]))
        offset += fragment.values.nbytes
    return pieces
