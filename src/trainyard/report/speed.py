"""How fast a training was and what it waited for, in a few figures of the whole training."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import NamedTuple

from trainyard.report.job_results import Metrics
from trainyard.settings.quantities import count, duration, memory, percentage

_LEAST_WINDOWS, _LEAST_EXCESS, _LEAST_STANDARD_ERRORS = 5, 0.01, 4.0
"""Below any of these, a rank that seems slower than the others may be so by chance, and is not mentioned.

The slowest of many ranks is chosen after the fact, so more than the usual two or three standard errors are required.
"""


class Figure(NamedTuple):
    """A quantity as text, with its label."""

    label: str
    value: str
    before: str = ""
    """Whose value is compared with it, and that value."""


def speed_figures(metrics: Metrics) -> Iterator[Figure]:
    """Yield the figures that there are series for. Medians are over logged lines, so warming up hardly counts."""
    by_step: dict[str, dict[float, float]] = defaultdict(dict)
    for name, points in metrics.series.items():
        by_step[name] = {step: value for step, value in points if math.isfinite(value)}
    series = defaultdict(list, {name: list(values.values()) for name, values in by_step.items()})
    # Each line of a series of means is the mean of the steps since the last one.
    waited, worked = (
        sum(by_step[name][step] * (step - before) for before, step in pairwise([0.0, *by_step[name]]))
        for name in ("data_wait_seconds", "step_seconds")
    )
    for name, unit in (("tokens_per_second", "tokens"), ("samples_per_second", "samples")):
        if series[name]:
            yield Figure(f"{unit} per second", count(median(series[name])))
            break
    if series["mfu"]:
        yield Figure("MFU", percentage(median(series["mfu"])))
    for name, label in (("run_step_seconds_p50", "median step"), ("run_step_seconds_p99", "99th percentile")):
        if series[name]:
            yield Figure(label, duration(series[name][-1]))
    if series["data_wait_seconds"] and worked > 0:
        yield Figure("waited for data", percentage(waited / worked) if waited > worked / 1000 else "under 0.1 %")
    if series["checkpoint_stall_seconds"]:
        yield Figure("waited for checkpoints", duration(sum(series["checkpoint_stall_seconds"])))
    if (slowest := slowest_rank(_windows_by_rank(by_step))) is not None:
        rank, excess = slowest
        yield Figure("slowest rank", f"{rank}, takes {percentage(excess)} longer than the others")
    if series["peak_memory_bytes"]:
        yield Figure("peak memory of a rank", memory(max(series["peak_memory_bytes"])))
    for name, label in (
        ("skipped_steps", "steps skipped"),
        ("loss_spikes", "loss spikes"),
        ("failed_saves", "checkpoints not saved"),
    ):
        if any(series[name]):
            # The count begins again at 0 with each attempt: a fall is a new attempt.
            earlier = sum(before for before, value in pairwise(series[name]) if value < before)
            yield Figure(label, count(series[name][-1] + earlier))


def _windows_by_rank(by_step: Mapping[str, dict[float, float]]) -> list[tuple[float, ...]]:
    """Return the seconds of every rank in each logged line that has all of them; the first line includes warming up."""
    ranks: list[dict[float, float]] = []
    while of_rank := by_step.get(f"rank_{len(ranks)}_seconds"):
        ranks.append(of_rank)
    steps = sorted(set.intersection(*map(set, ranks))) if ranks else []
    return [tuple(of_rank[step] for of_rank in ranks) for step in steps[1:]]


def slowest_rank(windows: Sequence[Sequence[float]]) -> tuple[int, float] | None:
    """Return the rank with the most seconds over all windows and its excess over the mean of the other ranks.

    `windows` has the seconds of every rank in each window. None if the excess is below the limits above, where the
    standard error is that of the windows' excesses.
    """
    if len(windows) < _LEAST_WINDOWS or len(windows[0]) < 2:
        return None
    means = [fmean(of_rank) for of_rank in zip(*windows, strict=True)]
    slowest = means.index(max(means))
    others = fmean(mean for rank, mean in enumerate(means) if rank != slowest)
    if others <= 0:
        return None
    excess = means[slowest] / others - 1
    differences = [
        window[slowest] - fmean(seconds for rank, seconds in enumerate(window) if rank != slowest) for window in windows
    ]
    standard_error = stdev(differences) / math.sqrt(len(windows)) / others
    is_significant = excess >= _LEAST_EXCESS and excess >= _LEAST_STANDARD_ERRORS * standard_error
    return (slowest, excess) if is_significant else None
