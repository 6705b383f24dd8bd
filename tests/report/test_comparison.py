"""Runs beside each other, hand-made so that every figure is known."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.report.comparison import Comparison, compare, write_comparison
from trainyard.settings.run_record import RunRecord, read_run_record


@pytest.fixture
def compared(make_run_to_compare: Callable[[str], Path]) -> Callable[..., Comparison]:
    def of(*letters: str) -> Comparison:
        records: list[RunRecord] = [read_run_record(make_run_to_compare(letter)) for letter in letters]
        return compare(records)

    return of


def test_only_settings_that_differ_are_listed_and_each_once(compared: Callable[..., Comparison]) -> None:
    settings = {row.label: row.values for row in compared("A", "B", "C").settings}

    assert settings == {
        "inputs.epochs": ("1", "2", "3"),
        "jobs.train.inputs.seed": ("0", "1", "–"),
        "jobs.train.torch": ("2.13.0", "2.13.0", "2.12.0"),
        "jobs.train: processes": ("2", "4", "6"),
    }


def test_results_and_times_are_those_of_the_runs(compared: Callable[..., Comparison]) -> None:
    comparison = compared("A", "B")

    assert {row.label: row.values for row in comparison.results} == {
        "train: last training loss": ("0.5", "0.25"),
        "train: best validation loss": ("0.6", "0.3"),
        "evaluate: test accuracy": ("90.0 %", "80.0 %"),
        "evaluate: test loss": ("0.1", "0.2"),
    }
    assert {row.label: row.values for row in comparison.times} == {
        "the whole run": ("10.0 s", "20.0 s"),
        "train": ("5.0 s", "reused"),
        "train: samples per second": ("100", "–"),
        "evaluate": ("61 ms", "failed"),
    }


def test_what_is_not_a_number_is_never_the_best(empty_run: Any) -> None:
    """An evaluation that gave no number is never chosen; a last loss of NaN is reported."""
    empty_run.add_job("train", outputs={"metrics": "metrics"})
    losses = [(0.5, None, 0.4), (0.4, 0.2, 0.6), (float("nan"), 0.3, float("nan"))]
    empty_run.write(
        "metrics/metrics.jsonl",
        [
            {"step": step, "loss": loss, "validation_loss": validation, "validation_accuracy": accuracy}
            for step, (loss, validation, accuracy) in enumerate(losses, start=1)
        ],
    )
    record = read_run_record(empty_run.finish())

    assert {row.label: row.values[0] for row in compare([record, record]).results} == {
        "train: last training loss": "not finite",
        "train: best validation loss": "0.2",
        "train: best validation accuracy": "60.0 %",
    }


def test_figures_of_different_splits_are_not_in_one_row(empty_run: Any, tmp_path: Path) -> None:
    empty_run.add_job("evaluate", outputs={"evaluation": "evaluation"})
    records = []
    for split, error in (("validation", 0.25), ("test", 0.5)):
        evaluation = {"format": "trainyard.evaluation/1", "split": split, "samples": 4, "absolute_error": error}
        empty_run.write("evaluation/evaluation.json", evaluation)
        shutil.copytree(empty_run.finish(), tmp_path / split)
        records.append(read_run_record(tmp_path / split))

    assert {row.label: row.values for row in compare(records).results} == {
        "evaluate: validation absolute error": ("0.25", "–"),
        "evaluate: test absolute error": ("–", "0.5"),
    }


def test_each_run_has_its_own_curve_in_its_own_style(compared: Callable[..., Comparison]) -> None:
    [training] = compared("A", "B", "C").trainings

    charts = {chart.title: chart for chart in training.charts}
    assert list(charts) == ["Training loss", "Validation loss", "Samples per second"]
    assert [(curve.label, curve.style) for curve in charts["Training loss"].curves] == [
        ("A", "first"),
        ("B", "second"),
        ("C", "third"),
    ]
    # C was never validated.
    assert [(curve.label, curve.style) for curve in charts["Validation loss"].curves] == [
        ("A", "first"),
        ("B", "second"),
    ]
    assert charts["Training loss"].readout["series"][1]["values"] == [1.0, 0.5, 0.25]


def test_equal_runs_have_no_differences(make_digits_run: Callable[[], Any], tmp_path: Path) -> None:
    record = read_run_record(make_digits_run().finish())
    comparison = compare([record, record])

    assert comparison.settings == ()
    write_comparison(comparison, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "these runs had the same settings" in page
    assert 'href="brave-otter-7/report.html"' in page


def test_the_page_is_called_by_the_display_name_and_draws_no_single_points(empty_run: Any, tmp_path: Path) -> None:
    empty_run.run["display_name"] = "Taxi fares"
    empty_run.add_job("train", outputs={"metrics": "metrics"})
    empty_run.write("metrics/metrics.jsonl", [{"step": 1, "loss": 0.5}])
    record = read_run_record(empty_run.finish())
    comparison = compare([record, record])

    assert [row.label for row in comparison.results] == ["train: last training loss"]
    assert comparison.trainings == ()
    write_comparison(comparison, tmp_path / "page.html")
    assert "<h1>Taxi fares</h1>" in (tmp_path / "page.html").read_text()
