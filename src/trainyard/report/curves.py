"""Training curves as charts: thinned series, axes with round ticks, and the points for the page's readout."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from trainyard.report.job_results import Metrics, Point
from trainyard.settings.quantities import count, counted, number

MOST_POINTS = 600
_BUCKETS = 195  # at most three points of each are kept
_MARKED_POINTS = 40
_LEAST_RELATIVE_RANGE = 1e-4
STYLES = ("first", "second", "third", "fourth", "fifth", "sixth")
_COMPARED_ROWS = 2
"""What was learned and how the training went; times are compared as figures."""

_HEIGHT = 240
_WIDTHS = (430, 326, 326)  # of the charts in each row: two or three side by side, with letters of the same size
TRACKED_WIDTH = _WIDTHS[-1]
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 12, 40


class Tick(NamedTuple):
    """A labelled position on an axis, in the drawing's units."""

    at: float
    label: str


class Curve(NamedTuple):
    """One series: its path, its dots, and where its value was not finite."""

    label: str
    style: str
    path: str
    dots: tuple[tuple[float, float], ...]
    not_finite_at: tuple[float, ...]


@dataclass(frozen=True)
class Chart:
    """One chart; `readout` holds the values that the page's script shows under the pointer."""

    title: str
    axis: str
    note: str
    width: float
    right: float
    steps: tuple[Tick, ...]
    values: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    readout: dict[str, Any]
    summary: str
    height, left, top, bottom = _HEIGHT, _LEFT, _TOP, _HEIGHT - _BOTTOM


class Line(NamedTuple):
    """A series to draw: its name in the legend, its style (first, second, third), and whether its points get dots."""

    label: str
    style: str
    points: Sequence[Point]
    has_dots: bool = False


@dataclass(frozen=True)
class Look:
    """What a chart is called, what its axes are, and how its values read.

    Of metrics it shows `series`, each with its label, unless there is one with the same meaning in a better unit.
    """

    title: str
    series: Mapping[str, str] = field(default_factory=dict)
    is_share: bool = False
    from_zero: bool = False
    axis: str = "step"
    most_points: int = MOST_POINTS
    unless: str = ""


_TOKENS = "tokens_per_second"
# Three rows: what was learned, how the training went, and where its time went.
_CHARTS = (
    (
        Look("Loss", {"loss": "training", "validation_loss": "validation"}),
        Look("Accuracy", {"accuracy": "training", "validation_accuracy": "validation"}, is_share=True),
        Look("Perplexity", {"validation_perplexity": "validation"}),
    ),
    (
        Look("Learning rate", {"learning_rate": "learning rate"}, from_zero=True),
        Look("Gradient norm", {"grad_norm": "gradient norm"}, from_zero=True),
        Look("Samples per second", {"samples_per_second": "samples per second"}, from_zero=True, unless=_TOKENS),
        Look("Tokens per second", {_TOKENS: "tokens per second"}, from_zero=True),
    ),
    (
        Look("Seconds per step", {"step_seconds_p50": "median", "step_seconds_p99": "99th percentile"}, from_zero=True),
        Look(
            "Seconds of own work",
            {"slowest_rank_seconds": "slowest at the time", "fastest_rank_seconds": "fastest at the time"},
            from_zero=True,
        ),
        Look("Seconds waited for data", {"data_wait_seconds": "seconds waited for data"}, from_zero=True),
    ),
)


def draw_charts(metrics: Metrics) -> list[list[Chart]]:
    """Return the charts for which these metrics have points, in rows."""
    rows = [
        [draw_chart(kind, lines, width) for kind in row if (lines := _lines(kind, metrics))]
        for row, width in zip(_CHARTS, _WIDTHS, strict=True)
    ]
    return [row for row in rows if row]


def draw_compared_charts(of_runs: Mapping[str, Metrics], own: Collection[str] = ()) -> list[Chart]:
    """Return a chart per series that any of the runs has, with a curve for each run; at most as many as STYLES.

    Of the series that our trainings write (`own`) only those that tell what was learned and how it went.
    """
    looks: dict[str, tuple[Look, str]] = {}
    for kind in (kind for row in _CHARTS[:_COMPARED_ROWS] for kind in row):
        for name, label in kind.series.items():
            title = f"{label} {kind.title}".capitalize() if len(kind.series) > 1 else kind.title
            looks[name] = replace(kind, title=title), kind.unless
    logged = [name for metrics in of_runs.values() for name, points in metrics.series.items() if len(points) > 1]
    looks |= {name: (Look(name), "") for name in sorted({*logged} - {*own} - looks.keys())}
    charts = []
    for name, (look, unless) in looks.items():
        lines = [
            Line(run, style, metrics.series[name])
            for (run, metrics), style in zip(of_runs.items(), STYLES, strict=False)
            if name in metrics.series and unless not in metrics.series
        ]
        if any(len(line.points) > 1 for line in lines):
            charts.append(draw_chart(look, lines, _WIDTHS[-1]))
    return charts


def draw_tracked_charts(metrics: Metrics) -> list[Chart]:
    """Return a chart for each series of at least two points, whatever it is called; system metrics last."""
    names = sorted(metrics.series, key=lambda name: (name.startswith("system/"), name))
    return [
        draw_chart(Look(name), [Line(name, "first", metrics.series[name])], TRACKED_WIDTH)
        for name in names
        if len(metrics.series[name]) > 1
    ]


def _lines(kind: Look, metrics: Metrics) -> list[Line]:
    lines = []
    for (name, label), style in zip(kind.series.items(), STYLES, strict=False):
        if name in metrics.series and kind.unless not in metrics.series:
            drawn_as = "second" if name.startswith("validation_") else style
            lines.append(Line(label, drawn_as, metrics.series[name], has_dots=drawn_as == "second"))
    return lines


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most `most` points in order: the extremes of each part of the curve, and one value that is not finite.

    So no spike is lost. The first and the last point are kept.
    """
    if len(points) <= most:
        return list(points)
    buckets = min(_BUCKETS, (most - 2) // 3)
    kept = {0, len(points) - 1}
    for bucket in range(buckets):
        stretch = range(bucket * len(points) // buckets, (bucket + 1) * len(points) // buckets)
        finite = [index for index in stretch if math.isfinite(points[index][1])]
        if finite:
            kept.add(min(finite, key=lambda index: points[index][1]))
            kept.add(max(finite, key=lambda index: points[index][1]))
        if len(finite) < len(stretch):
            kept.add(next(index for index in stretch if not math.isfinite(points[index][1])))
    return [points[index] for index in sorted(kept)]


def round_ticks(low: float, high: float, about: int) -> list[float]:
    """Return about so many multiples of 1, 2 or 5 × a power of ten within low…high."""
    assert low < high
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [multiple * step for multiple in range(first, last + 1)]


def draw_chart(look: Look, lines: Sequence[Line], width: float = _WIDTHS[0]) -> Chart:
    """Return the chart of some series, each of at least one point, thinned where they have many."""
    series = [line._replace(points=thinned(line.points, look.most_points)) for line in lines]
    steps = [step for line in series for step, _ in line.points]
    step_range = widened(min(steps), max(steps))
    value_range = _value_range([value for line in series for _, value in line.points if math.isfinite(value)], look)
    right, bottom = width - _RIGHT, _HEIGHT - _BOTTOM

    def x(step: float) -> float:
        return round(_LEFT + (step - step_range[0]) / (step_range[1] - step_range[0]) * (right - _LEFT), 1)

    def y(value: float) -> float:
        return round(bottom - (value - value_range[0]) / (value_range[1] - value_range[0]) * (bottom - _TOP), 1)

    value_ticks = round_ticks(*value_range, about=5)
    value_labels = axis_labels(value_ticks, is_share=look.is_share)
    step_ticks = [tick for tick in round_ticks(*step_range, about=5) if tick == int(tick)]
    step_distance = step_ticks[1] - step_ticks[0] if len(step_ticks) > 1 else 1.0
    not_finite = sum(not math.isfinite(value) for line in lines for _, value in line.points)
    return Chart(
        title=look.title,
        axis=look.axis,
        note=f"{counted(not_finite, 'value')} not finite, marked ×" if not_finite else "",
        width=width,
        right=right,
        steps=tuple(Tick(x(tick), _compact(tick, step_distance)) for tick in step_ticks),
        values=tuple(Tick(y(tick), label) for tick, label in zip(value_ticks, value_labels, strict=True)),
        curves=tuple(_curve(line, x, y) for line in series),
        readout={
            "left": _LEFT,
            "right": right,
            "top": _TOP,
            "bottom": bottom,
            "steps": list(step_range),
            "values": list(value_range),
            "share": look.is_share,
            "axis": look.axis,
            "series": [
                {
                    "label": line.label,
                    "style": line.style,
                    "steps": [step for step, _ in line.points],
                    "values": [value if math.isfinite(value) else None for _, value in line.points],
                }
                for line in series
            ],
        },
        summary="; ".join(_summary(line.label, line.points) for line in lines),
    )


def _curve(line: Line, x: Callable[[float], float], y: Callable[[float], float]) -> Curve:
    finite = [(x(step), y(value)) for step, value in line.points if math.isfinite(value)]
    return Curve(
        label=line.label,
        style=line.style,
        path=" ".join(_strokes(line.points, x, y)),
        dots=tuple(finite) if line.has_dots and len(finite) <= _MARKED_POINTS else (),
        not_finite_at=tuple(x(step) for step, value in line.points if not math.isfinite(value)),
    )


def _strokes(points: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]) -> Iterator[str]:
    """Yield one stroke per run of finite values. A single point becomes a stroke of length 0, drawn as a dot."""
    for is_finite, stretch in groupby(points, key=lambda point: math.isfinite(point[1])):
        if is_finite:
            places = [f"{x(step)},{y(value)}" for step, value in stretch]
            yield "M" + "L".join(places) + ("h0" if len(places) == 1 else "")


def widened(low: float, high: float) -> tuple[float, float]:
    """Return a range whose ticks differ in few digits; a nearly constant series becomes a level line."""
    if high - low > _LEAST_RELATIVE_RANGE * max(abs(low), abs(high)):
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def _value_range(values: Sequence[float], look: Look) -> tuple[float, float]:
    """Return the range of the values with a margin; shares include 0…1, other charts may start from zero."""
    if not values:
        return 0.0, 1.0
    low, high = widened(min(0.0, *values) if look.from_zero else min(values), max(values))
    margin = (high - low) * 0.06
    if look.is_share:
        return max(low - margin, min(low, 0.0)), min(high + margin, max(high, 1.0))
    return (low if look.from_zero else low - margin), high + margin


def axis_labels(ticks: Sequence[float], *, is_share: bool = False) -> list[str]:
    """Return the ticks' labels, with as many decimals as they need to differ."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(ticks[0]) or 1.0
    if is_share:
        decimals = max(0, -math.floor(math.log10(step * 100) + 1e-9))
        return [f"{tick * 100:.{decimals}f} %" for tick in ticks]
    largest = max(abs(tick) for tick in ticks)
    if largest >= 10_000:
        return [_compact(tick, step) for tick in ticks]
    if largest < 1e-6:
        digits = max(0, math.floor(math.log10(largest)) - math.floor(math.log10(step) + 1e-9))
        return ["0" if abs(tick) < step / 2 else f"{tick:.{digits}e}".replace("e-0", "e-") for tick in ticks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{tick:,.{decimals}f}" for tick in ticks]


def _compact(value: float, step: float) -> str:
    """Return `950`, `1,200`, `12.5k` or `3M`, short enough for an axis whose ticks are `step` apart."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, 10_000):
            if abs(value) >= 1e15:
                return f"{value:.3g}"
            decimals = max(0, -math.floor(math.log10(step / size) + 1e-9))
            return f"{value / size:.{decimals}f}{unit}"
    return count(value)


def _summary(label: str, points: Sequence[Point]) -> str:
    """Return the curve in words, for screen readers."""
    finite = [value for _, value in points if math.isfinite(value)]
    if not finite:
        return f"{label}: no finite value"
    named = {"first": finite[0], "last": finite[-1], "minimum": min(finite), "maximum": max(finite)}
    return f"{label}: {', '.join(f'{name} {number(value)}' for name, value in named.items())}"
