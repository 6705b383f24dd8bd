"""All runs as rows: what each is, and the metrics and parameters of its jobs, to choose columns from and sort by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from trainyard.errors import UsageError
from trainyard.printing import plain_text
from trainyard.report.job_results import Tracked, logged_by
from trainyard.settings.quantities import as_text, duration, moment, number
from trainyard.settings.run_record import RunRecord
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.secrets import redacted

ABSENT = "–"


def shown(text: str, name: str) -> str:
    """Return what a job logged under a name as one line that a terminal and a page may show, without secrets."""
    return " ".join(redacted(plain_text(text), name).split())


class IndexedRun:
    """A run, and what its jobs logged, read when it is asked for."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.facts = {
            "run": record.name,
            "pipeline": record.display_name or record.pipeline,
            "status": record.status,
            "started": moment(record.started_at),
            "took": duration(record.duration_s),
        }

    @property
    def address(self) -> str:
        """The name of its folder among all runs."""
        return self.record.folder.name

    @property
    def words(self) -> str:
        """What a search finds it by, in lower case."""
        settings = (f"{name}={value}" for name, value in self.parameters.items())
        return f" {' '.join((*self.facts.values(), *settings))} ".lower()

    @cached_property
    def _logged(self) -> list[Tracked]:
        return [logged_by(job, self.record.folder) for job in self.record.jobs.values()]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The last value of each metric that is a number; where jobs log the same, that of the last job."""
        series = [found for job in self._logged for found in job.metrics.series.items()]
        return {name: points[-1][1] for name, points in series if math.isfinite(points[-1][1])}

    @cached_property
    def parameters(self) -> dict[str, str]:
        """Inputs of the pipeline, and what its jobs logged as parameters or tags."""
        logged = [pair for job in self._logged for pair in (*job.tags.items(), *job.parameters.items())]
        found = dict(logged) | {name: as_text(value) for name, value in self.record.inputs.items()}
        return {name: shown(text, name) for name, text in found.items()}

    def text(self, column: str) -> str:
        """Return what a column shows; a dash for what this run does not have."""
        if column in self.facts:
            return self.facts[column]
        return number(self.metrics[column]) if column in self.metrics else self.parameters.get(column, ABSENT)

    def sort_key(self, column: str) -> tuple[bool, float, str]:
        """Return what a column is sorted by: numbers by size, before words."""
        precise = {"started": self.record.started, "took": self.record.duration_s, **self.metrics}
        value = precise.get(column, self.text(column))
        try:
            size = float(value or 0)
        except ValueError:
            size = math.nan
        return (False, size, "") if math.isfinite(size) else (True, 0.0, str(value))


def check_columns(runs: Sequence[IndexedRun], columns: Sequence[str]) -> None:
    """Raise `UsageError` for a column that no run has."""
    for column in columns:
        known = {name for run in runs for name in (*run.facts, *run.metrics, *run.parameters)}
        if column not in known:
            raise UsageError(f"no run has a metric or parameter {column!r}. {did_you_mean(column, known)}")


def sorted_by(runs: Sequence[IndexedRun], column: str, *, descending: bool) -> list[IndexedRun]:
    """Return runs by a column, those without it last. Raise `UsageError` if none has it."""
    check_columns(runs, [column])
    having = [run for run in runs if run.text(column) != ABSENT]
    lacking = [run for run in runs if run.text(column) == ABSENT]
    return sorted(having, key=lambda run: run.sort_key(column), reverse=descending) + lacking
