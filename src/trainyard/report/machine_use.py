"""What each job used of the machine over time, as charts and figures: processors, memory, GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from trainyard.report.curves import TRACKED_WIDTH, Chart, Line, Look, draw_chart
from trainyard.report.job_results import Point
from trainyard.report.speed import Figure
from trainyard.settings.quantities import memory, percentage
from trainyard.settings.run_record import MACHINE_USE_FILE, MACHINE_USE_FORMAT, RunRecord

_MOST_POINTS = 150
_MOST_JOBS_DRAWN = 12
_LEAST_SAMPLES_DRAWN = 3
_TIME_UNITS = ((2 * 3600, 3600, "hours"), (2 * 60, 60, "minutes"), (0, 1, "seconds"))
"""From how many seconds on, the seconds in the unit, its name."""


class MachineUse(NamedTuple):
    """A job's use of the machine in its last attempt; of a sweep, that of its trials together, without charts.

    `charts` are empty for a short job, too, or one of many.
    """

    title: str
    figures: tuple[Figure, ...]
    charts: tuple[Chart, ...]


class _Samples(NamedTuple):
    """Series by the seconds since the attempt began. Shares of GPUs are means over the GPUs, memory is their sum."""

    processors: int
    processors_busy: tuple[Point, ...]
    memory_bytes: tuple[Point, ...]
    gpus_busy: tuple[Point, ...]
    gpu_memory_bytes: tuple[Point, ...]


def machine_uses(run: RunRecord, run_folder: Path) -> list[MachineUse]:
    """Return the use of the machine by each job that ran in this run and was sampled. The longest have charts."""
    found: dict[str, list[_Samples]] = {}
    for job in run.jobs.values():
        folder = run_folder / "jobs" / job.name
        folders = [folder / "trials" / str(trial.number) for trial in job.trials] or [folder]
        folders = folders if job.state != "reused" else []
        read = [_read(folder / "system_logs" / MACHINE_USE_FILE) for folder in folders]
        found[job.name] = [samples for samples in read if samples is not None]
    alone = {name: samples[0] for name, samples in found.items() if samples and not run.jobs[name].trials}
    longest = sorted(alone, key=lambda name: -alone[name].processors_busy[-1][0])[:_MOST_JOBS_DRAWN]
    charts = {name: tuple(_charts(alone[name])) for name in longest}
    return [
        MachineUse(run.jobs[name].title, tuple(_figures(samples)), charts.get(name, ()))
        for name, samples in found.items()
        if samples
    ]


def _read(file: Path) -> _Samples | None:
    """Return the samples of the last attempt; None without any. Lines that cannot be read are left out."""
    try:
        lines = file.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return None
    processors = 0
    rows: list[tuple[float, Mapping[str, Any]]] = []
    for line in lines:
        try:
            row = json.loads(line)
            if "format" in row:
                if row["format"] != MACHINE_USE_FORMAT:
                    return None
                processors, rows = int(row["processors"]), []
            else:
                _ = float(row["processors_busy"]), float(row["memory_bytes"])
                _ = [(float(gpu["busy"]), float(gpu["memory_bytes"])) for gpu in (row.get("gpus") or {}).values()]
                rows.append((float(row["seconds"]), row))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    if not rows:
        return None
    with_gpus = [(seconds, row["gpus"].values()) for seconds, row in rows if row.get("gpus")]
    return _Samples(
        processors,
        tuple((seconds, float(row["processors_busy"])) for seconds, row in rows),
        tuple((seconds, float(row["memory_bytes"])) for seconds, row in rows),
        tuple((seconds, fmean(gpu["busy"] for gpu in gpus)) for seconds, gpus in with_gpus),
        tuple((seconds, float(sum(gpu["memory_bytes"] for gpu in gpus))) for seconds, gpus in with_gpus),
    )


def _figures(of_trials: Sequence[_Samples]) -> list[Figure]:
    """Return means over time and peaks of a job or all trials. A sample stands for the time since the one before."""
    one = " of a trial" if len(of_trials) > 1 else ""
    texts = {
        f"processors busy{one}, on average": f"{_mean(of_trials, 'processors_busy'):.1f} of {of_trials[0].processors}",
        f"peak memory{one}": memory(max(value for samples in of_trials for _, value in samples.memory_bytes)),
    }
    if gpu_memory := [value for samples in of_trials for _, value in samples.gpu_memory_bytes]:
        texts[f"GPUs busy{one}, on average"] = percentage(_mean(of_trials, "gpus_busy"))
        texts[f"peak GPU memory{one}"] = memory(max(gpu_memory))
    return [Figure(label, text) for label, text in texts.items()]


def _mean(of_trials: Sequence[_Samples], series: str) -> float:
    seconds, total = 0.0, 0.0
    for points in (getattr(samples, series) for samples in of_trials):
        for (before, _), (at, value) in pairwise([(0.0, 0.0), *points]):
            seconds, total = seconds + at - before, total + value * (at - before)
    return total / seconds if seconds > 0 else 0.0


def _charts(samples: _Samples) -> list[Chart]:
    if len(samples.processors_busy) < _LEAST_SAMPLES_DRAWN:
        return []
    ended = samples.processors_busy[-1][0]
    seconds_in_unit, unit = next((size, name) for least, size, name in _TIME_UNITS if ended >= least)

    def chart(title: str, points: tuple[Point, ...], *, scale: int = 1, is_share: bool = False) -> Chart:
        look = Look(title, is_share=is_share, from_zero=True, axis=unit, most_points=_MOST_POINTS)
        scaled = [(seconds / seconds_in_unit, value / scale) for seconds, value in points]
        return draw_chart(look, [Line(title.lower(), "first", scaled)], TRACKED_WIDTH)

    charts = [
        chart(f"Processors busy, of {samples.processors}", samples.processors_busy),
        chart("Memory in GiB", samples.memory_bytes, scale=1 << 30),
    ]
    if samples.gpus_busy:
        charts.append(chart("GPUs busy", samples.gpus_busy, is_share=True))
        charts.append(chart("GPU memory in GiB", samples.gpu_memory_bytes, scale=1 << 30))
    return charts
