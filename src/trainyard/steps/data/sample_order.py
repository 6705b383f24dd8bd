"""The order of samples: a permutation that is computed, not stored.

A keyed Feistel network permutes the smallest power of two that holds n; whatever it sends outside is sent on until
it lands inside (cycle walking), which makes it a permutation of 0…n-1. The order is a pure function of seed, epoch
and position: ready at once for any n, with nothing to save at a checkpoint, and the same for every world size.

Feistel networks as permutations: Luby and Rackoff, SIAM J. Comput. 17(2), 1988. Cycle walking: Black and Rogaway,
CT-RSA 2002. A round multiplies, shifts and multiplies: its top bits then depend on all bits of what went in. The
multipliers are those of `lowbias32`, found by search: Wellons, "Prospecting for hash functions", nullprogram.com, 2018.

The rounds' keys come from the finalizer of splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

_ROUNDS, _ROUNDS_OF_SMALL = 8, 24
_SMALL_BITS = 12
"""Chi-square tests find nothing from 6 rounds on in a large order; where halves are a few bits, they want 16."""
_ROUND_MULTIPLIER_1, _ROUND_MULTIPLIER_2, _ROUND_SHIFT = np.uint32(0x7FEB352D), np.uint32(0x846CA68B), np.uint32(15)
_AT_ONCE = 1 << 14
"""Positions per pass: their halves stay in a core's own cache."""


class SampleOrder:
    """The order in which an epoch (counted from 1 in training) visits the samples; a few bytes for any number."""

    def __init__(self, samples: int, seed: int, epoch: int = 0) -> None:
        assert 1 <= samples < 1 << 62
        self.samples = samples
        bits = max(2, (samples - 1).bit_length())
        self._right_bits = bits // 2
        self._left_bits = bits - self._right_bits
        rounds = _ROUNDS_OF_SMALL if bits <= _SMALL_BITS else _ROUNDS
        self._round_keys = [np.uint32(key >> 32) for key in islice(key_stream(seed, epoch), rounds)]

    def sample_ids(self, start: int, stop: int) -> Ids:
        """The samples at positions start…stop-1 of the epoch."""
        assert 0 <= start <= stop <= self.samples
        return self.sample_ids_at(np.arange(start, stop))

    def sample_ids_at(self, positions: Ids) -> Ids:
        """The samples at the given positions of the epoch."""
        sample_ids = np.empty(len(positions), dtype=np.int64)
        for first in range(0, len(positions), _AT_ONCE):
            here = slice(first, first + _AT_ONCE)
            sample_ids[here] = self._permute_inside(positions[here])
        return sample_ids

    def _permute_inside(self, positions: Ids) -> Ids:
        values = self._permute(positions)
        outside = np.flatnonzero(values >= self.samples)
        while outside.size:
            walked = self._permute(values[outside])
            values[outside] = walked
            outside = outside[walked >= self.samples]
        return values

    def _permute(self, values: Ids) -> Ids:
        """One pass through the network. The halves' widths swap with each round, and are back after an even number."""
        left = (values >> self._right_bits).astype(np.uint32)
        right = (values & ((1 << self._right_bits) - 1)).astype(np.uint32)
        mixed, shifted = np.empty_like(left), np.empty_like(left)
        left_bits, right_bits = self._left_bits, self._right_bits
        for key in self._round_keys:
            np.add(right, key, out=mixed)
            np.multiply(mixed, _ROUND_MULTIPLIER_1, out=mixed)
            np.right_shift(mixed, _ROUND_SHIFT, out=shifted)
            np.bitwise_xor(mixed, shifted, out=mixed)
            np.multiply(mixed, _ROUND_MULTIPLIER_2, out=mixed)
            np.right_shift(mixed, np.uint32(32 - left_bits), out=mixed)
            np.bitwise_xor(left, mixed, out=left)
            left, right = right, left
            left_bits, right_bits = right_bits, left_bits
        permuted = left.astype(np.int64)
        permuted <<= self._right_bits
        permuted |= right
        return permuted


_MASK_64 = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1, _MULTIPLIER_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key_stream(*parts: int) -> Iterator[int]:
    """Endless 64-bit keys; other streams for other parts, such as seed and epoch."""
    state = 0
    for part in parts:
        state = _mix((state + part) & _MASK_64)
    while True:
        state = (state + _GOLDEN_GAMMA) & _MASK_64
        yield _mix(state)


def mix_with_key(values: npt.NDArray[np.int64], key: int) -> npt.NDArray[np.int64]:
    """64 bits for each value that depend on all bits of value and key."""
    mixed = values.view(np.uint64) * np.uint64(_GOLDEN_GAMMA)
    mixed += np.uint64(key)
    bits: npt.NDArray[np.int64] = finalized(mixed).view(np.int64)
    return bits


def finalized(mixed: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finalizer of splitmix64 in place, and return the array."""
    for shift, multiplier in ((30, _MULTIPLIER_1), (27, _MULTIPLIER_2)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _mix(value: int) -> int:
    value = (value + _GOLDEN_GAMMA) & _MASK_64
    value = ((value ^ (value >> 30)) * _MULTIPLIER_1) & _MASK_64
    value = ((value ^ (value >> 27)) * _MULTIPLIER_2) & _MASK_64
    return value ^ (value >> 31)
