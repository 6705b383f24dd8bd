"""Runs beside each other: the settings that differ, results, times, and curves drawn over each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trainyard
from trainyard.report.curves import STYLES, Chart, draw_compared_charts
from trainyard.report.job_results import JobResults, Metrics, read_job_results
from trainyard.report.page_templates import page_templates
from trainyard.report.speed import speed_figures
from trainyard.settings import quantities
from trainyard.settings.files import replace_text
from trainyard.settings.run_record import JobRecord, RunRecord

_Name = TypeVar("_Name")
_Results = Mapping[str, Mapping[str, JobResults]]
"""Of each run, by its letter, the results of its jobs."""

MOST_RUNS = len(STYLES)
ABSENT = "–"


@dataclass(frozen=True)
class Row:
    """A quantity or setting, with its text for each run in the order of the runs."""

    label: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the runs do not agree."""
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class ComparedTraining:
    """The curves of the trainings of the same job."""

    job: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Comparison:
    """Two or more runs, each with a letter; rows hold a value for each run."""

    runs: dict[str, RunRecord]
    settings: tuple[Row, ...]
    results: tuple[Row, ...]
    times: tuple[Row, ...]
    trainings: tuple[ComparedTraining, ...]


def compare(records: Sequence[RunRecord]) -> Comparison:
    """Return what two to MOST_RUNS runs have in common and what not."""
    assert 2 <= len(records) <= MOST_RUNS
    runs = dict(zip("ABC", records, strict=False))
    results = {letter: _results(record) for letter, record in runs.items()}
    jobs = list(dict.fromkeys(job for record in records for job in record.jobs))
    drawn = {job: draw_compared_charts(_metrics_of(job, results)) for job in jobs}
    return Comparison(
        runs,
        settings=tuple(row for row in _settings(runs, results, jobs) if row.differs),
        results=tuple(_figures(results, jobs)),
        times=tuple(_times(runs, results, jobs)),
        trainings=tuple(ComparedTraining(job, tuple(charts)) for job, charts in drawn.items() if charts),
    )


def write_comparison(comparison: Comparison, file: Path) -> None:
    """Write a comparison as one page that needs no network. Raise OSError when it cannot be written."""
    template = page_templates(file.parent.resolve()).get_template("comparison.html.j2")
    replace_text(file, template.render(comparison=comparison, is_live=False, version=trainyard.__version__))


def _results(record: RunRecord) -> dict[str, JobResults]:
    return {name: read_job_results(job.output_folders(record.folder)) for name, job in record.jobs.items()}


def _metrics_of(job: str, results: _Results) -> dict[str, Metrics]:
    """Return a job's metrics in each run, without series where there are none: curves keep the style of their run."""
    found = {letter: of_run.get(job) for letter, of_run in results.items()}
    return {letter: (of_job and of_job.metrics) or Metrics({}) for letter, of_job in found.items()}


def _row(label: str, values: Iterable[Any], write: Callable[[Any], str] = quantities.as_text) -> Row:
    return Row(label, tuple(ABSENT if value is None else write(value) for value in values))


def _settings(runs: Mapping[str, RunRecord], results: _Results, jobs: Sequence[str]) -> Iterable[Row]:
    """Yield inputs of the pipeline, then what each job has beyond them: inputs, settings, processes and versions.

    A job's input that has the same values as the pipeline's of that name is the same setting, listed once.
    """
    said: set[tuple[str, tuple[str, ...]]] = set()
    pipeline_inputs = [record.inputs for record in runs.values()]
    for name in _names(pipeline_inputs):
        row = _row(f"inputs.{name}", (inputs.get(name) for inputs in pipeline_inputs))
        said.add((name, row.values))
        yield row
    for job in jobs:
        of_job = [record.jobs.get(job) for record in runs.values()]
        trained_with = [found.settings if (found := of_run.get(job)) else None for of_run in results.values()]
        inputs = [found.inputs if found else {} for found in of_job]
        ports = {name for found in of_job if found for name in (*found.inputs, *found.outputs)}
        # Ports are listed as inputs; as settings they are folders below each run's own.
        settings = [
            {name: value for name, value in found.settings.items() if name not in ports} if found else {}
            for found in trained_with
        ]
        versions = [found.versions if found else {} for found in trained_with]
        for prefix, of_runs in (("inputs.", inputs), ("settings.", settings), ("", versions)):
            for name in _names(of_runs):
                row = _row(f"jobs.{job}.{prefix}{name}", (each.get(name) for each in of_runs))
                if (name, row.values) not in said:
                    said.add((name, row.values))
                    yield row
        yield _row(f"jobs.{job}: processes", (found and found.processes for found in of_job))


def _names(mappings: Iterable[Mapping[_Name, Any]]) -> list[_Name]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _figures(results: _Results, jobs: Sequence[str]) -> Iterable[Row]:
    for job in jobs:
        of_runs = [of_run.get(job) for of_run in results.values()]
        evaluations = [_evaluated(found) for found in of_runs]
        for split, name in _names(evaluations):
            values = [figures.get((split, name)) for figures in evaluations]
            yield _row(f"{job}: {split} {name.replace('_', ' ')}", values, partial(quantities.figure, name))
        for series, label, choose in _OF_CURVES:
            curves = [found.metrics.series.get(series) if found and found.metrics else None for found in of_runs]
            if any(curves):
                chosen = [choose([value for _, value in points]) if points else None for points in curves]
                yield _row(f"{job}: {label}", chosen, partial(quantities.figure, label))


def _evaluated(results: JobResults | None) -> dict[tuple[str, str], float]:
    """Return the figures of a job's evaluation by split and name."""
    evaluation = results.evaluation if results else None
    return {(evaluation.split, name): value for name, value in evaluation.figures.items()} if evaluation else {}


def _finite(values: Iterable[float]) -> Iterable[float]:
    return filter(math.isfinite, values)


_OF_CURVES: tuple[tuple[str, str, Callable[[Sequence[float]], float]], ...] = (
    ("loss", "last training loss", lambda values: values[-1]),
    ("validation_loss", "best validation loss", lambda values: min(_finite(values), default=math.nan)),
    ("validation_accuracy", "best validation accuracy", lambda values: max(_finite(values), default=math.nan)),
)
"""Name of the series, label of the row, and the value that is compared."""


def _times(runs: Mapping[str, RunRecord], results: _Results, jobs: Sequence[str]) -> Iterable[Row]:
    yield _row("the whole run", (record.duration_s for record in runs.values()), quantities.duration)
    for job in jobs:
        yield _row(job, (record.jobs.get(job) for record in runs.values()), _time_of_job)
        speeds = [
            {figure.label: figure.value for figure in speed_figures(found.metrics)} if found and found.metrics else {}
            for found in (of_run.get(job) for of_run in results.values())
        ]
        for name in _names(speeds):
            yield _row(f"{job}: {name}", (speed.get(name) for speed in speeds))


def _time_of_job(job: JobRecord) -> str:
    if job.state == "reused":
        return "reused"
    return quantities.duration(job.duration_s) if job.status == "completed" else job.status
