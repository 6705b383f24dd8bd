"""Numbers that look random and are pure functions of what they are made from: the finaliser of splitmix64.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

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
    for shift, multiplier in ((30, _MULTIPLIER_1), (27, _MULTIPLIER_2)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(31)
    bits: npt.NDArray[np.int64] = mixed.view(np.int64)
    return bits


def _mix(value: int) -> int:
    value = (value + _GOLDEN_GAMMA) & _MASK_64
    value = ((value ^ (value >> 30)) * _MULTIPLIER_1) & _MASK_64
    value = ((value ^ (value >> 27)) * _MULTIPLIER_2) & _MASK_64
    return value ^ (value >> 31)
