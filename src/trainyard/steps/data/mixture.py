"""Several datasets trained on as one, each with a share of the samples: which sample is where, computed, not stored.

An epoch has as many samples as the datasets have together, of which each dataset contributes its share, exact to one
sample. `SampleOrder` shuffles these places; the places of a dataset are filled by passes over it, each in an order of
its own, which go on from epoch to epoch. So each sample of a dataset is taken as often as any other of it, to within
one, and the order follows from seed, epoch and position alone: it is the same at any world size and after any resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np

from trainyard.steps.data.dataset.manifest import ArrayType
from trainyard.steps.data.dataset.reader import Array, SplitReader
from trainyard.steps.data.sample_order import Ids, SampleOrder, key_stream

_PASSES = 2
"""Distinguishes the keys of the datasets' own orders from those of the order that mixes them."""


class Mixture:
    """The samples of several splits under numbers that go on from one to the next, and their mixed order."""

    def __init__(self, splits: Sequence[SplitReader], weights: Sequence[Fraction]) -> None:
        self._splits = splits
        self._firsts = np.array([0, *accumulate(split.samples for split in splits)])
        self.samples = self.stored_samples = int(self._firsts[-1])
        self.contributions = contributions_of(weights, self.samples)
        """How many samples of an epoch come from each split."""

    @property
    def arrays(self) -> Mapping[str, ArrayType]:
        """The arrays, which all splits have alike."""
        return self._splits[0].arrays

    def order(self, seed: int, epoch: int) -> MixedOrder:
        """Return the order of an epoch, counted from 1."""
        return MixedOrder([split.samples for split in self._splits], self.contributions, seed, epoch)

    def gather(self, sample_ids: Ids, into: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Return copies of the samples, as `SplitReader.gather`."""
        gathered = into
        if gathered is None:
            gathered = self._splits[0].gather(np.zeros(len(sample_ids), dtype=np.int64))
        owners = np.searchsorted(self._firsts, sample_ids, side="right") - 1
        for number, split in enumerate(self._splits):
            places = np.flatnonzero(owners == number)
            if places.size:
                for name, values in split.gather(sample_ids[places] - self._firsts[number]).items():
                    gathered[name][places] = values
        return dict(gathered)


class MixedOrder:
    """The order of one epoch. A sample's second pass within an epoch has a number of its own."""

    def __init__(self, sizes: Sequence[int], contributions: Sequence[int], seed: int, epoch: int) -> None:
        self._sizes, self._total = sizes, sum(sizes)
        self._firsts = np.array([0, *accumulate(sizes)])
        self._place_firsts = np.array([0, *accumulate(contributions)])
        self._taken_before = [(epoch - 1) * contribution for contribution in contributions]
        self._places = SampleOrder(self._total, seed, epoch)
        self._seed = seed

    def sample_ids_at(self, positions: Ids) -> Ids:
        """The samples at the given positions of the epoch, plus the number of all samples for each pass before."""
        places = self._places.sample_ids_at(positions)
        owners = np.searchsorted(self._place_firsts, places, side="right") - 1
        sample_ids = np.empty_like(places)
        for number, size in enumerate(self._sizes):
            here = np.flatnonzero(owners == number)
            passes, within = np.divmod(places[here] - self._place_firsts[number] + self._taken_before[number], size)
            for each in np.unique(passes):
                of_pass = passes == each
                order = SampleOrder(size, next(key_stream(self._seed, number, _PASSES)) % (1 << 31), int(each))
                taken = order.sample_ids_at(within[of_pass]) + self._firsts[number]
                sample_ids[here[of_pass]] = taken + self._total * each
        return sample_ids


def contributions_of(weights: Sequence[Fraction], samples: int) -> list[int]:
    """Return how many of the samples each weight stands for: rounded down, the rest to the largest remainders."""
    whole = sum(weights)
    shares = [weight * samples / whole for weight in weights]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(weights)), key=lambda number: (counts[number] - shares[number], number))
    for number in by_remainder[: samples - sum(counts)]:
        counts[number] += 1
    return counts
