"""Which nodes or ranks are slower than the rest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Slow:
    """A node or rank by its number, and how far its rate is below the median of all, as a share of it."""

    number: int
    rate: float
    below_median: float


def slow_ones(rates: Mapping[int, float], least_share: float) -> list[Slow]:
    """Return those whose rate is at least `least_share` below the median of all, the slowest first."""
    if len(rates) < 2:
        return []
    median = statistics.median(rates.values())
    below = [Slow(number, rate, 1 - rate / median) for number, rate in rates.items()]
    return sorted((each for each in below if each.below_median >= least_share), key=lambda each: each.rate)


def rates_of_units(pairs: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Return each unit's median rate over its pairs.

    One slow unit lowers a single pair of every other one, and all of its own: so the median finds it where there are
    at least three units. With two there is no telling which side of a slow pair is to blame.
    """
    of_unit: dict[int, list[float]] = {}
    for (one, other), rate in pairs.items():
        of_unit.setdefault(one, []).append(rate)
        of_unit.setdefault(other, []).append(rate)
    return {unit: statistics.median(rates) for unit, rates in sorted(of_unit.items())}
