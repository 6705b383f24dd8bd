"""How fast a training was and what it waited for, in a few figures of the whole training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

from trainyard.report.job_results import Metrics
from trainyard.settings.quantities import count, duration, memory, percentage

_LEAST_WINDOWS, _LEAST_EXCESS, _LEAST_STANDARD_ERRORS = 5, 0.01, 4.0
"""Below any of these, a rank that seems slower than the others may be so by chance, and is not mentioned.

The slowest of many ranks is chosen after the fact, so more than the usual two or three standard errors are required.
"""


@dataclass(frozen=True)
class Figure:
    """A quantity as text, with its label."""

    label: str
    value: str
    before: str = ""
    """Whose value is compared with it, and that value."""


def speed_figures(metrics: Metrics) -> list[Figure]:
    """Return the figures that there are series for. Medians are over logged lines, so warming up hardly counts."""
    return [Figure(label, value) for label, value in _figures(_FiniteSeries(metrics))]


class _FiniteSeries:
    """The finite values of each series, in order."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __getitem__(self, name: str) -> list[float]:
        return [value for _, value in self._metrics.series.get(name, ()) if math.isfinite(value)]

    def by_step(self, name: str) -> dict[float, float]:
        """Return the finite values of a series by step."""
        return {step: value for step, value in self._metrics.series.get(name, ()) if math.isfinite(value)}

    def total(self, name: str) -> float:
        """Return the sum over all steps of a series of means: each line is the mean of the steps since the last one."""
        values = self.by_step(name)
        return sum(values[step] * (step - before) for before, step in pairwise([0.0, *values]))


def _figures(series: _FiniteSeries) -> Iterator[tuple[str, str]]:
    for name, unit in (("tokens_per_second", "tokens"), ("samples_per_second", "samples")):
        if series[name]:
            yield f"{unit} per second", count(median(series[name]))
            break
    if series["mfu"]:
        yield "MFU", percentage(median(series["mfu"]))
    for name, label in (("run_step_seconds_p50", "median step"), ("run_step_seconds_p99", "99th percentile")):
        if series[name]:
            yield label, duration(series[name][-1])
    waited, worked = series.total("data_wait_seconds"), series.total("step_seconds")
    if series["data_wait_seconds"] and worked > 0:
        yield "waited for data", percentage(waited / worked) if waited > worked / 1000 else "under 0.1 %"
    if series["checkpoint_stall_seconds"]:
        yield "waited for checkpoints", duration(sum(series["checkpoint_stall_seconds"]))
    if (slowest := slowest_rank(_windows_by_rank(series))) is not None:
        rank, excess = slowest
        yield "slowest rank", f"{rank}, {percentage(excess)} slower than the others"
    if series["peak_memory_bytes"]:
        yield "peak memory of a rank", memory(max(series["peak_memory_bytes"]))
    for name, label in (
        ("skipped_steps", "steps skipped"),
        ("loss_spikes", "loss spikes"),
        ("failed_saves", "checkpoints not saved"),
    ):
        if any(series[name]):
            yield label, count(_counted_over_attempts(series[name]))


def _counted_over_attempts(values: Sequence[float]) -> float:
    """Return the total of a count that begins again at 0 with each attempt: a fall is a new attempt."""
    return values[-1] + sum(before for before, value in pairwise(values) if value < before)


def _windows_by_rank(series: _FiniteSeries) -> list[tuple[float, ...]]:
    """Return the seconds of every rank in each logged line that has all of them; the first line includes warming up."""
    ranks: list[dict[float, float]] = []
    while of_rank := series.by_step(f"rank_{len(ranks)}_seconds"):
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
