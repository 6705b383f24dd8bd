"""Runs beside each other: the settings that differ, results, times, and curves drawn over each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple, TypeVar

import trainyard
from trainyard.report.curves import STYLES, Chart, draw_compared_charts
from trainyard.report.job_results import Image, JobResults, Metrics, Tracked, logged_by, read_job_results
from trainyard.report.page_templates import page_templates
from trainyard.report.run_index import ABSENT
from trainyard.report.speed import speed_figures
from trainyard.settings import quantities
from trainyard.settings.files import replace_text
from trainyard.settings.run_record import JobRecord, RunRecord

_Name = TypeVar("_Name")
_Results = Mapping[str, Mapping[str, JobResults]]
"""Of each run, by its letter, the results of its jobs."""

_Logged = Mapping[str, Mapping[str, Tracked]]

MOST_RUNS = len(STYLES)


class Row(NamedTuple):
    """A quantity or setting, with its text for each run in the order of the runs."""

    label: str
    values: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Whether the runs do not agree."""
        return len(set(self.values)) > 1


class ComparedTraining(NamedTuple):
    """The curves of the same job in each run, and the pictures that it logged, each with the run's letter."""

    job: str
    charts: tuple[Chart, ...]
    pictures: tuple[tuple[str, Image], ...]


class Comparison(NamedTuple):
    """Two or more runs, each with a letter; rows hold a value for each run."""

    runs: dict[str, RunRecord]
    settings: tuple[Row, ...]
    results: tuple[Row, ...]
    times: tuple[Row, ...]
    trainings: tuple[ComparedTraining, ...]


def compare(records: Sequence[RunRecord]) -> Comparison:
    """Return what two to MOST_RUNS runs have in common and what not."""
    assert 2 <= len(records) <= MOST_RUNS
    runs = dict(zip(ascii_uppercase, records, strict=False))
    results: dict[str, dict[str, JobResults]] = {letter: {} for letter in runs}
    logged: dict[str, dict[str, Tracked]] = {letter: {} for letter in runs}
    for letter, run in runs.items():
        for name, job in run.jobs.items():
            results[letter][name] = read_job_results(job.output_folders(run.folder))
            logged[letter][name] = logged_by(job, run.folder, results[letter][name])
    jobs = list(dict.fromkeys(name for record in records for name in record.jobs))
    trainings = [
        ComparedTraining(
            name,
            tuple(draw_compared_charts(_metrics_of(name, logged), own=_of_our_trainings(name, results))),
            tuple((letter, image) for letter in runs for image in logged[letter].get(name, Tracked()).images),
        )
        for name in jobs
    ]
    return Comparison(
        runs,
        settings=tuple(row for row in (*_settings(runs, results, jobs), *_noted(results, logged, jobs)) if row.differs),
        results=tuple(_figures(results, logged, jobs)),
        times=tuple(_times(runs, results, jobs)),
        trainings=tuple(each for each in trainings if each.charts or each.pictures),
    )


def write_comparison(comparison: Comparison, file: Path) -> None:
    """Write a comparison as one page that needs no network. Raise OSError when it cannot be written."""
    reports = {letter: run.folder.resolve() / "report.html" for letter, run in comparison.runs.items()}
    replace_text(file, comparison_page(comparison, file.parent.resolve(), reports))


def comparison_page(comparison: Comparison, folder: Path, pages: Mapping[str, Path | str]) -> str:
    """Return the page of a comparison that lies in a folder, with links to the pages of its runs by their letters."""
    template = page_templates(folder).get_template("comparison.html.j2")
    return template.render(comparison=comparison, pages=pages, is_live=False, version=trainyard.__version__)


def _metrics_of(job: str, logged: _Logged) -> dict[str, Metrics]:
    """Return a job's metrics in each run, without series where there are none: curves keep the style of their run."""
    return {letter: of_run.get(job, Tracked()).metrics for letter, of_run in logged.items()}


def _noted(results: _Results, logged: _Logged, jobs: Sequence[str]) -> Iterable[Row]:
    """Yield the parameters and tags that jobs logged with MLflow; those of our trainings are their settings."""
    for job in jobs:
        of_runs = [of_run.get(job, Tracked()) for of_run in logged.values()]
        has_settings = any(of_run[job].settings for of_run in results.values() if job in of_run)
        parameters = [{} if has_settings else run.parameters for run in of_runs]
        for kind, texts in (("params", parameters), ("tags", [run.tags for run in of_runs])):
            for name in _names(texts):
                yield _row(f"jobs.{job}.{kind}.{name}", (each.get(name) for each in texts))


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


def _figures(results: _Results, logged: _Logged, jobs: Sequence[str]) -> Iterable[Row]:
    """Yield of each job what is compared of its curves, the figures of its evaluation, and what it logged itself."""
    for job in jobs:
        series = [metrics.series for metrics in _metrics_of(job, logged).values()]
        telemetry = _of_our_trainings(job, results) - _OF_CURVES.keys()
        for name in (name for name in _names(series) if name not in telemetry):
            label, choose = _OF_CURVES.get(name, (name.replace("_", " "), lambda values: values[-1]))
            values = [choose([value for _, value in each[name]]) if name in each else None for each in series]
            yield _row(f"{job}: {label}", values, partial(quantities.figure, label))


def _of_our_trainings(job: str, results: _Results) -> set[str]:
    found = [of_run[job].metrics for of_run in results.values() if job in of_run]
    return {name for metrics in found if metrics is not None for name in metrics.series}


_OF_CURVES: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "loss": ("last training loss", lambda values: values[-1]),
    "validation_loss": ("best validation loss", lambda values: min(filter(math.isfinite, values), default=math.nan)),
    "validation_accuracy": (
        "best validation accuracy",
        lambda values: max(filter(math.isfinite, values), default=math.nan),
    ),
}
"""By the name of the series, the label of the row and the value that is compared."""


def _times(runs: Mapping[str, RunRecord], results: _Results, jobs: Sequence[str]) -> Iterable[Row]:
    yield _row("the whole run", (record.duration_s for record in runs.values()), quantities.duration)
    for job in jobs:
        yield _row(job, (record.jobs.get(job) for record in runs.values()), _time_of_job)
        speeds = [
            _speeds(record.jobs.get(job), of_run.get(job))
            for record, of_run in zip(runs.values(), results.values(), strict=True)
        ]
        for name in _names(speeds):
            yield _row(f"{job}: {name}", (speed.get(name) for speed in speeds))


def _speeds(job: JobRecord | None, found: JobResults | None) -> dict[str, str]:
    """Return the figures of a training's speed; none of one that ran in another run."""
    if job is None or job.state == "reused" or found is None or found.metrics is None:
        return {}
    return {figure.label: figure.value for figure in speed_figures(found.metrics)}


def _time_of_job(job: JobRecord) -> str:
    if job.state == "reused":
        return "reused"
    return quantities.duration(job.duration_s) if job.status == "completed" else job.status
