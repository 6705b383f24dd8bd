"""The trials of a sweep as drawings: parallel coordinates, and the primary metric against each parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.report.curves import Tick, axis_labels, round_ticks
from trainyard.settings.quantities import as_text, duration, number
from trainyard.settings.run_record import JobRecord, TrialRecord, trials_in_words

_MOST_PARAMETERS_DRAWN = 12
_MOST_VALUES_NAMED = 12
_LONGEST_NAME = 16
_RATIO_OF_LOGARITHMIC = 50.0
"""Numbers above 0 that differ by this factor are drawn on a logarithmic axis."""

_BETWEEN_AXES, _SIDE = 150.0, 76.0


@dataclass(frozen=True)
class Axis:
    """A vertical axis at `x`, with the ticks of its values."""

    label: str
    x: float
    ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class DrawnTrial:
    """A trial as a line (the path) or a point; `strength` 0…1 is the greater, the closer its metric is to the best."""

    trial: TrialRecord
    tooltip: str
    path: str = ""
    strength: float = 1.0
    x: float = 0.0
    y: float = 0.0

    @property
    def kind(self) -> str:
        """The trial's status, or that it is the best."""
        return "best" if self.trial.is_best else self.trial.status


@dataclass(frozen=True)
class ParallelCoordinates:
    """One axis for each parameter, and one for the metric."""

    width: float
    axes: tuple[Axis, ...]
    lines: tuple[DrawnTrial, ...]
    height, top, bottom = 260.0, 34.0, 246.0


@dataclass(frozen=True)
class Plot:
    """The metric (upwards) against one parameter."""

    parameter: str
    columns: tuple[Tick, ...]
    rows: tuple[Tick, ...]
    points: tuple[DrawnTrial, ...]
    width, height, left, right, top, bottom = 326.0, 220.0, 58.0, 312.0, 14.0, 180.0


@dataclass(frozen=True)
class SweepView:
    """A sweep on the page; without trials that were measured there is nothing to draw."""

    job: JobRecord
    in_words: str
    parameters: tuple[str, ...]
    metric: str
    coordinates: ParallelCoordinates | None
    plots: tuple[Plot, ...]


def sweep_view(job: JobRecord) -> SweepView | None:
    """Return the drawings of a job's trials; None for a job that is no sweep."""
    if not job.trials:
        return None
    parameters = tuple(dict.fromkeys(name for trial in job.trials for name in trial.inputs))
    metric = next((trial.metric_name for trial in job.trials if trial.metric_name), "metric")
    ended = [trial for trial in job.trials if trial.status in ("completed", "failed")]
    measured = [trial for trial in ended if _metric_of(trial) is not None]
    drawn = [name for name in parameters if any(name in trial.inputs for trial in measured)][:_MOST_PARAMETERS_DRAWN]
    return SweepView(
        job,
        trials_in_words(job.trials),
        parameters,
        metric,
        _parallel_coordinates(ended, drawn, metric) if len(measured) > 1 else None,
        tuple(_plot(measured, name, metric) for name in drawn) if len(measured) > 1 else (),
    )


class _Scale:
    """Where values lie on an axis, 0…1: linear, logarithmic, or one place for each value that is not a number."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._names: list[str] = []
        self._is_logarithmic = False
        if not all(_is_number(value) for value in values):
            self._names = list(dict.fromkeys(map(as_text, values)))
            return
        self._low, self._high = float(min(values)), float(max(values))
        self._is_logarithmic = self._low > 0 and self._high / self._low >= _RATIO_OF_LOGARITHMIC
        if self._low == self._high:
            margin = abs(self._low) * 0.1 or 1.0
            self._low, self._high = self._low - margin, self._high + margin

    def place(self, value: Any) -> float:
        """Return the place of a value."""
        if self._names:
            return (self._names.index(as_text(value)) + 0.5) / len(self._names)
        low, high, at = self._low, self._high, float(value)
        if self._is_logarithmic:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and their labels; of many names those that there is room for."""
        if self._names:
            every = -(-len(self._names) // _MOST_VALUES_NAMED)
            return [(self.place(name), _shortened(name)) for name in self._names[::every]]
        if self._is_logarithmic:
            powers = range(math.ceil(math.log10(self._low) - 1e-9), math.floor(math.log10(self._high) + 1e-9) + 1)
            every = -(-len(powers) // 6)
            return [(self.place(10.0**power), number(10.0**power)) for power in powers[::every]]
        ticks = round_ticks(self._low, self._high, about=5)
        return [(self.place(tick), label) for tick, label in zip(ticks, axis_labels(ticks), strict=True)]


def _metric_of(trial: TrialRecord) -> float | None:
    return trial.metric if trial.metric is not None and math.isfinite(trial.metric) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _in_words(trial: TrialRecord, metric: str) -> str:
    inputs = [f"{name} = {as_text(value)}" for name, value in trial.inputs.items()]
    measured = f"{metric} = {number(trial.metric)}" if trial.metric is not None else trial.reason or trial.status
    took = [f"took {duration(trial.duration_s)}"] if trial.duration_s is not None else []
    return "\n".join([f"trial {trial.number}{', the best' if trial.is_best else ''}", *inputs, measured, *took])


def _parallel_coordinates(trials: Sequence[TrialRecord], parameters: Sequence[str], metric: str) -> ParallelCoordinates:
    """Draw trials that have ended; one without a metric ends at the last parameter."""
    columns = [[trial.inputs[name] for trial in trials if name in trial.inputs] for name in parameters]
    metrics = [value for trial in trials if (value := _metric_of(trial)) is not None]
    scales = [_Scale(column) for column in (*columns, metrics)]
    places = [_SIDE + index * _BETWEEN_AXES for index in range(len(scales))]
    top, bottom = ParallelCoordinates.top, ParallelCoordinates.bottom

    def y(place: float) -> float:
        return round(bottom - place * (bottom - top), 1)

    best = next((value for trial in trials if trial.is_best and (value := _metric_of(trial)) is not None), metrics[0])
    spread = max(abs(value - best) for value in metrics) or 1.0
    lines = []
    for trial in sorted(trials, key=lambda each: each.is_best):  # the best on top
        measured = _metric_of(trial)
        values = [*(trial.inputs.get(name) for name in parameters), measured]
        stops = [(x, y(scale.place(v))) for x, scale, v in zip(places, scales, values, strict=True) if v is not None]
        path = "M" + "L".join(f"{x},{height}" for x, height in stops)
        distance = abs((measured if measured is not None else best) - best) / spread
        lines.append(DrawnTrial(trial, _in_words(trial, metric), path, strength=round(0.85 - 0.65 * distance, 2)))
    axes = [
        Axis(_shortened(label), x, tuple(Tick(y(at), name) for at, name in scale.ticks()))
        for label, x, scale in zip((*parameters, metric), places, scales, strict=True)
    ]
    return ParallelCoordinates(places[-1] + _SIDE, tuple(axes), tuple(lines))


def _plot(measured: Sequence[TrialRecord], parameter: str, metric: str) -> Plot:
    found = [trial for trial in measured if parameter in trial.inputs]
    across, upwards = _Scale([trial.inputs[parameter] for trial in found]), _Scale([trial.metric for trial in found])

    def x(place: float) -> float:
        return round(Plot.left + 6 + place * (Plot.right - Plot.left - 12), 1)

    def y(place: float) -> float:
        return round(Plot.bottom - 6 - place * (Plot.bottom - Plot.top - 12), 1)

    points = [
        DrawnTrial(
            trial,
            _in_words(trial, metric),
            x=x(across.place(trial.inputs[parameter])),
            y=y(upwards.place(trial.metric)),
        )
        for trial in sorted(found, key=lambda each: each.is_best)
    ]
    columns = tuple(Tick(x(at), label) for at, label in across.ticks())
    return Plot(parameter, columns, tuple(Tick(y(at), label) for at, label in upwards.ticks()), tuple(points))
