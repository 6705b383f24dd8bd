"""The order of samples: a permutation that is computed, not stored.

A keyed Feistel network permutes the smallest power of two that holds n; whatever it sends outside is sent on until
it lands inside (cycle walking), which makes it a permutation of 0…n-1. The order is a pure function of seed, epoch
and position: ready at once for any n, with nothing to save at a checkpoint, and the same for every world size.

Feistel networks as permutations: Luby and Rackoff, SIAM J. Comput. 17(2), 1988. Cycle walking: Black and Rogaway,
CT-RSA 2002. The mixer is the finaliser of splitmix64: Steele, Lea and Flood, OOPSLA 2014.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROUNDS = 12
"""Four make a good permutation of many samples; chi-square tests of less than ten samples want twelve."""
_MASK_64 = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class SampleOrder:
    """The order in which an epoch (counted from 1 in training) visits the samples; a few bytes for any number."""

    def __init__(self, samples: int, seed: int, epoch: int = 0) -> None:
        assert samples >= 1
        self.samples = samples
        bits = max(2, (samples - 1).bit_length())
        self._right_bits = bits // 2
        self._left_bits = bits - self._right_bits
        self._round_keys = _round_keys(seed, epoch)

    def sample_ids(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The samples at positions start…stop-1 of the epoch."""
        assert 0 <= start <= stop <= self.samples
        values = self._permute(np.arange(start, stop, dtype=np.uint64))
        outside = np.flatnonzero(values >= self.samples)
        while outside.size:
            walked = self._permute(values[outside])
            values[outside] = walked
            outside = outside[walked >= self.samples]
        return values.astype(np.int64)

    def _permute(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """One pass through the network. The halves' widths swap with each round, and are back after an even number."""
        left_bits, right_bits = self._left_bits, self._right_bits
        left = values >> np.uint64(right_bits)
        right = values & np.uint64((1 << right_bits) - 1)
        for key in self._round_keys:
            left, right = right, left ^ (_mix(right ^ key) & np.uint64((1 << left_bits) - 1))
            left_bits, right_bits = right_bits, left_bits
        permuted: npt.NDArray[np.uint64] = (left << np.uint64(right_bits)) | right
        return permuted


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_MIX_2)
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    keys = []
    state = _mix_integer(_mix_integer(seed & _MASK_64) + epoch)
    for _ in range(_ROUNDS):
        state = (state + _GOLDEN_GAMMA) & _MASK_64
        keys.append(np.uint64(_mix_integer(state)))
    return keys


def _mix_integer(value: int) -> int:
    """The same mixer on a Python integer, after one step of splitmix64's counter."""
    value = (value + _GOLDEN_GAMMA) & _MASK_64
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK_64
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK_64
    return value ^ (value >> 31)


class BlockwiseOrder:
    """A sample order read forwards, computed in blocks: per-sample cost instead of per-batch cost for small batches."""

    def __init__(self, order: SampleOrder, block_samples: int = 1 << 15) -> None:
        self._order = order
        self._block_samples = block_samples
        self._block_start = 0
        self._block = np.empty(0, dtype=np.int64)

    def sample_ids(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """The samples at positions start…stop-1; cheap when called with rising positions."""
        if start < self._block_start or stop > self._block_start + len(self._block):
            block_stop = min(self._order.samples, start + max(self._block_samples, stop - start))
            self._block_start, self._block = start, self._order.sample_ids(start, block_stop)
        return self._block[start - self._block_start : stop - self._block_start]
