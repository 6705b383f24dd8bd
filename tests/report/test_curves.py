"""Thinning, ticks and paths of the training curves."""

from __future__ import annotations

import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.report.curves import MOST_POINTS, draw_charts, round_ticks, thinned
from trainyard.report.job_results import Metrics


def points_of(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+),(-?[\d.]+)", path)]


def test_few_points_are_all_drawn() -> None:
    metrics = Metrics({"loss": tuple((step, 1 / step) for step in range(1, 31))})

    [[chart]] = draw_charts(metrics)

    assert chart.title == "Loss"
    assert len(points_of(chart.curves[0].path)) == 30
    assert chart.readout["series"][0]["steps"] == list(range(1, 31))


def test_thinning_keeps_every_spike_and_both_ends() -> None:
    chance = random.Random(3)
    points = [(float(step), chance.random()) for step in range(10_000)]
    points[1234] = (1234.0, 50.0)
    points[7777] = (7777.0, -50.0)

    kept = thinned(points)

    assert len(kept) <= MOST_POINTS
    assert {points[0], points[1234], points[7777], points[-1]} <= set(kept)
    assert kept == sorted(kept)


values = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf]))


@given(st.lists(values, min_size=1, max_size=300), st.integers(12, 60))
def test_thinning_keeps_the_range_and_what_is_not_finite(sequence: list[float], most: int) -> None:
    points = [(float(step), value) for step, value in enumerate(sequence)]

    kept = thinned(points, most)

    finite = [value for value in sequence if math.isfinite(value)]
    kept_finite = [value for _, value in kept if math.isfinite(value)]
    assert len(kept) <= max(most, 3)
    assert kept[0] is points[0]
    assert kept[-1] is points[-1]
    if finite:
        assert (min(kept_finite), max(kept_finite)) == (min(finite), max(finite))
    assert (len(finite) < len(sequence)) == (len(kept_finite) < len(kept))


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(3, 8))
def test_ticks_are_round_and_within_the_range(low: float, width: float, about: int) -> None:
    high = low + width
    ticks = round_ticks(low, high, about) if high - low > 1e-9 * max(abs(low), abs(high)) else [low]

    assert 1 <= len(ticks) <= about + 1
    assert all(low - width * 1e-6 <= tick <= high + width * 1e-6 for tick in ticks)


@given(st.lists(st.tuples(st.integers(0, 10**7), values), min_size=1, max_size=40, unique_by=lambda point: point[0]))
def test_every_point_lies_within_its_chart(points: list[tuple[int, float]]) -> None:
    metrics = Metrics({"loss": tuple(sorted((float(step), value) for step, value in points))})

    [[chart]] = draw_charts(metrics)

    drawn = points_of(chart.curves[0].path)
    assert len(drawn) == sum(math.isfinite(value) for _, value in points)
    assert all(chart.left <= x <= chart.right and chart.top <= y <= chart.bottom for x, y in drawn)
    assert all(chart.left <= tick.at <= chart.right for tick in chart.steps)
    assert all(chart.top <= tick.at <= chart.bottom for tick in chart.values)
    labels = [tick.label for tick in chart.values]
    assert len(set(labels)) == len(labels)


def test_a_curve_passes_through_its_values_on_the_axes() -> None:
    """Where a value is that of a tick, the curve is at the tick."""
    [[chart]] = draw_charts(Metrics({"loss": ((0, 2.0), (20, 3.0), (40, 1.0))}))

    steps = {tick.label: tick.at for tick in chart.steps}
    values = {tick.label: tick.at for tick in chart.values}
    expected = [(steps["0"], values["2.0"]), (steps["20"], values["3.0"]), (steps["40"], values["1.0"])]
    assert points_of(chart.curves[0].path) == [pytest.approx(point, abs=0.06) for point in expected]
    assert steps["0"] < steps["20"] < steps["40"]
    assert values["3.0"] < values["2.0"] < values["1.0"], "larger values are further up"


def test_a_gap_is_left_where_a_value_is_not_finite() -> None:
    metrics = Metrics({"loss": ((1, 3.0), (2, 2.0), (3, math.nan), (4, 1.0), (5, math.inf), (6, 0.5), (7, 0.4))})

    [[chart]] = draw_charts(metrics)

    assert chart.curves[0].path.count("M") == 3
    assert chart.curves[0].path.count("h0") == 1  # the lone point at step 4
    assert len(chart.curves[0].not_finite_at) == 2
    assert chart.note == "2 values not finite, marked ×"


@pytest.mark.parametrize(
    ("name", "series", "labels"),
    [
        ("validation_accuracy", (0.5, 0.75, 1.0), ["60 %", "80 %", "100 %"]),
        ("validation_accuracy", (0.985, 0.986), ["98.50 %", "98.55 %", "98.60 %"]),
        ("learning_rate", (0.0, 0.003), ["0.000", "0.001", "0.002", "0.003"]),
        ("learning_rate", (0.0, 6e-5), ["0.00000", "0.00002", "0.00004", "0.00006"]),
        ("samples_per_second", (31_000.0, 42_000.0), ["0", "10k", "20k", "30k", "40k"]),
        ("loss", (2.0, 2.0), ["1.8", "1.9", "2.0", "2.1", "2.2"]),
        ("loss", (2.31, 2.3105), ["2.3100", "2.3102", "2.3104"]),
        ("loss", (1e6, 1.2e6), ["1.00M", "1.05M", "1.10M", "1.15M", "1.20M"]),
        ("loss", (0.0, 1e16), ["0", "5e+15", "1e+16"]),
    ],
)
def test_axes_are_labelled_as_people_write(name: str, series: tuple[float, ...], labels: list[str]) -> None:
    [[chart]] = draw_charts(Metrics({name: tuple(enumerate(series))}))

    assert [tick.label for tick in chart.values] == labels


def test_a_language_model_has_charts_of_perplexity_tokens_and_time() -> None:
    names = ("loss", "validation_perplexity", "samples_per_second", "tokens_per_second", "step_seconds_p50")
    rows = draw_charts(Metrics(dict.fromkeys(names, ((1, 0.5), (2, 0.4)))))

    titles = [[chart.title for chart in row] for row in rows]
    assert titles == [["Loss", "Perplexity"], ["Tokens per second"], ["Seconds per step"]]


def test_charts_are_in_two_rows() -> None:
    names = ("loss", "validation_loss", "validation_accuracy", "learning_rate", "grad_norm", "samples_per_second")
    rows = draw_charts(Metrics(dict.fromkeys(names, ((1, 0.5), (2, 0.4)))))

    assert [[chart.title for chart in row] for row in rows] == [
        ["Loss", "Accuracy"],
        ["Learning rate", "Gradient norm", "Samples per second"],
    ]
    assert rows[0][0].summary.startswith("training: first 0.5, last 0.4")


def test_metrics_of_other_names_make_no_chart() -> None:
    assert draw_charts(Metrics({"step": ((1, 1.0),), "temperature": ((1, 40.0),)})) == []
