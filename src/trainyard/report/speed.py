"""How fast a training was and what it waited for, in a few figures of the whole of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from trainyard.foundation.quantities import count, duration, memory, percentage
from trainyard.report.job_results import Metrics


@dataclass(frozen=True)
class Figure:
    """A quantity as text, with its label."""

    label: str
    value: str


def speed_figures(metrics: Metrics) -> list[Figure]:
    """Those figures that there are series for. Medians are over the logged lines, so that warming up does not count."""
    return [Figure(label, value) for label, value in _figures(_FiniteSeries(metrics))]


class _FiniteSeries:
    """The finite values of each series, in order."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __getitem__(self, name: str) -> list[float]:
        return [value for _, value in self._metrics.series.get(name, ()) if math.isfinite(value)]


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
    waited, worked = sum(series["data_wait_seconds"]), sum(series["step_seconds"])
    if series["data_wait_seconds"] and worked > 0:
        yield "waited for data", percentage(waited / worked) if waited > worked / 1000 else "under 0.1 %"
    if series["checkpoint_stall_seconds"]:
        yield "waited for checkpoints", duration(sum(series["checkpoint_stall_seconds"]))
    slowest, fastest = sum(series["slowest_rank_seconds"]), sum(series["fastest_rank_seconds"])
    if series["slowest_rank"] and fastest > 0:
        (rank, _), *_ = Counter(series["slowest_rank"]).most_common(1)
        yield "slowest rank", f"{rank:.0f}, {percentage(slowest / fastest - 1)} slower"
    if series["peak_memory_bytes"]:
        yield "peak memory of a rank", memory(max(series["peak_memory_bytes"]))
    for name, label in (
        ("skipped_steps", "steps skipped"),
        ("loss_spikes", "loss spikes"),
        ("failed_saves", "checkpoints not saved"),
    ):
        if any(series[name]):
            yield label, count(max(series[name]))
