"""Training curves as charts: thinned series, axes with round ticks, and the points for the page's readout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from trainyard.foundation.quantities import count, counted
from trainyard.report.job_results import Metrics, Point

MOST_POINTS = 600
_BUCKETS = 195  # at most three points of each are kept
_MARKED_POINTS = 40
_LEAST_RELATIVE_RANGE = 1e-4

_HEIGHT = 240
_WIDTHS = (430, 326, 326)  # of the charts in each row: two or three side by side, with letters of the same size
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 12, 40


@dataclass(frozen=True)
class Tick:
    """A labelled position on an axis, in the drawing's units."""

    at: float
    label: str


@dataclass(frozen=True)
class Curve:
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
    note: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    steps: tuple[Tick, ...]
    values: tuple[Tick, ...]
    curves: tuple[Curve, ...]
    readout: dict[str, Any]
    summary: str


@dataclass(frozen=True)
class _ChartKind:
    title: str
    series: tuple[tuple[str, str, str], ...]
    """Name in the metrics, label, style."""
    is_share: bool = False
    from_zero: bool = False
    unless: str = ""
    """A series with the same meaning in a better unit, which replaces this chart."""


# Three rows: what was learned, how the training went, and where its time went.
_CHARTS = (
    (
        _ChartKind("Loss", (("loss", "training", "first"), ("validation_loss", "validation", "second"))),
        _ChartKind(
            "Accuracy",
            (("accuracy", "training", "first"), ("validation_accuracy", "validation", "second")),
            is_share=True,
        ),
        _ChartKind("Perplexity", (("validation_perplexity", "validation", "second"),)),
    ),
    (
        _ChartKind("Learning rate", (("learning_rate", "learning rate", "first"),), from_zero=True),
        _ChartKind("Gradient norm", (("grad_norm", "gradient norm", "first"),), from_zero=True),
        _ChartKind(
            "Samples per second",
            (("samples_per_second", "samples per second", "first"),),
            from_zero=True,
            unless="tokens_per_second",
        ),
        _ChartKind("Tokens per second", (("tokens_per_second", "tokens per second", "first"),), from_zero=True),
    ),
    (
        _ChartKind(
            "Seconds per step",
            (("step_seconds_p50", "median", "first"), ("step_seconds_p99", "99th percentile", "second")),
            from_zero=True,
        ),
        _ChartKind(
            "Seconds of own work",
            (("slowest_rank_seconds", "slowest rank", "first"), ("fastest_rank_seconds", "fastest rank", "second")),
            from_zero=True,
        ),
        _ChartKind(
            "Seconds waited for data", (("data_wait_seconds", "seconds waited for data", "first"),), from_zero=True
        ),
    ),
)


def draw_charts(metrics: Metrics) -> list[list[Chart]]:
    """Return the charts for which these metrics have points, in rows."""
    rows = [
        [_chart(kind, metrics, width) for kind in row if _present(kind, metrics)]
        for row, width in zip(_CHARTS, _WIDTHS, strict=True)
    ]
    return [row for row in rows if row]


def _present(kind: _ChartKind, metrics: Metrics) -> bool:
    return kind.unless not in metrics.series and any(name in metrics.series for name, _, _ in kind.series)


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


def _chart(kind: _ChartKind, metrics: Metrics, width: float) -> Chart:
    series = [
        (label, style, name, thinned(metrics.series[name]))
        for name, label, style in kind.series
        if name in metrics.series
    ]
    steps = [step for *_, points in series for step, _ in points]
    step_range = _widened(min(steps), max(steps))
    value_range = _value_range([value for *_, points in series for _, value in points if math.isfinite(value)], kind)
    right, bottom = width - _RIGHT, _HEIGHT - _BOTTOM

    def x(step: float) -> float:
        return round(_LEFT + (step - step_range[0]) / (step_range[1] - step_range[0]) * (right - _LEFT), 1)

    def y(value: float) -> float:
        return round(bottom - (value - value_range[0]) / (value_range[1] - value_range[0]) * (bottom - _TOP), 1)

    value_ticks = round_ticks(*value_range, about=5)
    value_labels = _labels(value_ticks, kind.is_share)
    step_ticks = [tick for tick in round_ticks(*step_range, about=5) if tick == int(tick)]
    step_distance = step_ticks[1] - step_ticks[0] if len(step_ticks) > 1 else 1.0
    not_finite = sum(not math.isfinite(value) for _, _, name, _ in series for _, value in metrics.series[name])
    return Chart(
        title=kind.title,
        note=f"{counted(not_finite, 'value')} not finite, marked ×" if not_finite else "",
        width=width,
        height=_HEIGHT,
        left=_LEFT,
        right=right,
        top=_TOP,
        bottom=bottom,
        steps=tuple(Tick(x(tick), _compact(tick, step_distance)) for tick in step_ticks),
        values=tuple(Tick(y(tick), label) for tick, label in zip(value_ticks, value_labels, strict=True)),
        curves=tuple(_curve(label, style, points, x, y) for label, style, _, points in series),
        readout={
            "left": _LEFT,
            "right": right,
            "top": _TOP,
            "bottom": bottom,
            "steps": list(step_range),
            "values": list(value_range),
            "share": kind.is_share,
            "series": [
                {
                    "label": label,
                    "style": style,
                    "steps": [step for step, _ in points],
                    "values": [value if math.isfinite(value) else None for _, value in points],
                }
                for label, style, _, points in series
            ],
        },
        summary="; ".join(_summary(label, metrics.series[name]) for label, _, name, _ in series),
    )


def _curve(
    label: str, style: str, points: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]
) -> Curve:
    finite = [(x(step), y(value)) for step, value in points if math.isfinite(value)]
    return Curve(
        label=label,
        style=style,
        path=" ".join(_strokes(points, x, y)),
        dots=tuple(finite) if style == "second" and len(finite) <= _MARKED_POINTS else (),
        not_finite_at=tuple(x(step) for step, value in points if not math.isfinite(value)),
    )


def _strokes(points: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]) -> Iterator[str]:
    """Yield one stroke per run of finite values. A single point becomes a stroke of length 0, drawn as a dot."""
    for is_finite, stretch in groupby(points, key=lambda point: math.isfinite(point[1])):
        if is_finite:
            places = [f"{x(step)},{y(value)}" for step, value in stretch]
            yield "M" + "L".join(places) + ("h0" if len(places) == 1 else "")


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return a range whose ticks differ in few digits; a nearly constant series becomes a level line."""
    if high - low > _LEAST_RELATIVE_RANGE * max(abs(low), abs(high)):
        return low, high
    margin = abs(low) * 0.1 or 1.0
    return low - margin, high + margin


def _value_range(values: Sequence[float], kind: _ChartKind) -> tuple[float, float]:
    """Return the range of the values with a margin; shares include 0…1, other charts may start from zero."""
    if not values:
        return 0.0, 1.0
    low, high = _widened(min(0.0, *values) if kind.from_zero else min(values), max(values))
    margin = (high - low) * 0.06
    if kind.is_share:
        return max(low - margin, min(low, 0.0)), min(high + margin, max(high, 1.0))
    return (low if kind.from_zero else low - margin), high + margin


def _labels(ticks: Sequence[float], is_share: bool) -> list[str]:
    """Return the ticks' labels, with as many decimals as they need to differ."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(ticks[0]) or 1.0
    if is_share:
        decimals = max(0, -math.floor(math.log10(step * 100) + 1e-9))
        return [f"{tick * 100:.{decimals}f} %" for tick in ticks]
    largest = max(abs(tick) for tick in ticks)
    if largest >= 10_000:
        return [_compact(tick, step) for tick in ticks]
    if largest < 0.001:
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
    return (
        f"{label}: first {finite[0]:.4g}, last {finite[-1]:.4g}, minimum {min(finite):.4g}, maximum {max(finite):.4g}"
    )
