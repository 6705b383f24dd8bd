"""The trials of a sweep as drawings: parallel coordinates, and the primary metric against each parameter.

Here is where each trial lies on each axis; the template knows how large the drawings are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from trainyard.report.curves import axis_labels, round_ticks, widened
from trainyard.settings.quantities import as_text, duration, number
from trainyard.settings.run_record import JobRecord, TrialRecord, trials_in_words

_MOST_PARAMETERS_DRAWN = 12
_MOST_VALUES_NAMED = 12
_LONGEST_NAME = 16
_RATIO_OF_LOGARITHMIC = 50.0
"""Numbers above 0 that differ by this factor are drawn on a logarithmic axis."""


class SweepView:
    """A sweep on the page; `axes` are the drawn parameters and the metric, or none before two trials have a metric.

    `ended` are the trials that are drawn, the best last, to lie on top.
    """

    def __init__(self, job: JobRecord) -> None:
        self.job = job
        self.in_words = trials_in_words(job.trials)
        self.parameters = list(dict.fromkeys(name for trial in job.trials for name in trial.inputs))
        self.metric = next((trial.metric_name for trial in job.trials if trial.metric_name), "metric")
        ended = [trial for trial in job.trials if trial.status in ("completed", "failed")]
        self.ended = sorted(ended, key=lambda trial: trial.is_best)
        self.measured = [trial for trial in self.ended if _metric_of(trial) is not None]
        drawn = [name for name in self.parameters if any(name in trial.inputs for trial in self.measured)]
        self.axes = [*drawn[:_MOST_PARAMETERS_DRAWN], self.metric] if len(self.measured) > 1 else []
        self._scales = {
            name: Scale([v for trial in ended if (v := self._value(trial, name)) is not None]) for name in self.axes
        }

    def _value(self, trial: TrialRecord, axis: str) -> Any:
        return _metric_of(trial) if axis == self.metric else trial.inputs.get(axis)

    def place(self, trial: TrialRecord, axis: str) -> float | None:
        """Return where a trial is on an axis, 0…1; None if it has no value there, as a failed one has no metric."""
        value = self._value(trial, axis)
        return None if value is None else self._scales[axis].place(value)

    def ticks(self, axis: str) -> list[tuple[float, str]]:
        """Return the places on an axis that have a label, and the labels."""
        return self._scales[axis].ticks()

    def strength(self, trial: TrialRecord) -> float:
        """Return 0.2…0.85, the more, the closer the trial's metric is to the best."""
        best, place = self.place(self.measured[-1], self.metric), self.place(trial, self.metric)
        return 0.85 if best is None or place is None else round(0.85 - 0.65 * abs(place - best), 2)

    def in_detail(self, trial: TrialRecord) -> str:
        """Return the lines that are shown of a trial under the pointer."""
        inputs = [f"{name} = {as_text(value)}" for name, value in trial.inputs.items()]
        measured = (
            f"{self.metric} = {number(trial.metric)}" if trial.metric is not None else trial.reason or trial.status
        )
        best = ", the best" if trial.is_best else ""
        return "\n".join([f"trial {trial.number}{best}", *inputs, measured, f"took {duration(trial.duration_s)}"])


class Scale:
    """Where values lie on an axis, 0…1: linear, logarithmic, or one place for each value that is not a number."""

    def __init__(self, values: Sequence[Any], logarithmic_from: float = _RATIO_OF_LOGARITHMIC) -> None:
        self._names: list[str] = []
        self._is_logarithmic = False
        if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
            self._names = list(dict.fromkeys(map(as_text, values)))
            return
        self._low, self._high = widened(float(min(values)), float(max(values)))
        self._is_logarithmic = self._low > 0 and self._high / self._low >= logarithmic_from

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
            return [(self.place(name), name[:_LONGEST_NAME]) for name in self._names[::every]]
        if self._is_logarithmic:
            powers = range(math.floor(math.log10(self._low)), math.floor(math.log10(self._high) + 1e-9) + 1)
            factors = (1, 2, 5) if len(powers) < 4 else (1,)
            found = [factor * 10.0**power for power in powers for factor in factors]
            here = [tick for tick in found if self._low * (1 - 1e-9) <= tick <= self._high * (1 + 1e-9)]
            return [(self.place(tick), number(tick)) for tick in here[:: -(-len(here) // 6)]]
        ticks = round_ticks(self._low, self._high, about=5)
        return [(self.place(tick), label) for tick, label in zip(ticks, axis_labels(ticks), strict=True)]


def _metric_of(trial: TrialRecord) -> float | None:
    return trial.metric if trial.metric is not None and math.isfinite(trial.metric) else None
