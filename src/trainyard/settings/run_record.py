"""run.json, the record of a local run: its fields as dataclasses, how it is written and how it is read.

The format is `trainyard.run/1`. A reader ignores fields that it does not know, and takes the default of a field that
is missing or null. A record may come with a repository, from anybody: the reader checks every type, and whatever a
record names as a file lies in the folder of its run.
"""

from __future__ import annotations

import graphlib
import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from trainyard.settings.files import read_regular, replace_text
from trainyard.settings.quantities import number
from trainyard.settings.typed_json import read_dataclass

RUN_FORMAT = "trainyard.run/1"
RECORD_FILE = "run.json"

MACHINE_USE_FORMAT = "trainyard.machine_use/1"
MACHINE_USE_FILE = "machine_use.jsonl"
"""In `system_logs` of a job: what its processes used of the machine; docs/report.md describes it."""

NOTHING_CHANGED = "nothing changed"
"""The `reuse` of a job whose result was found in the cache, and not taken because the job was left out of the run."""

_LARGEST_BYTES = 256 * 2**20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")

Status = Literal["waiting", "running", "completed", "failed", "canceled", "skipped"]


class InvalidRunRecord(ValueError):
    """A run.json that is missing or invalid; the message names the file and what is wrong with it."""


@dataclass
class AttemptRecord:
    """One start of a job. `exit_codes` is by rank; a negative code is the signal that ended the process.

    `cache_key` identifies what went into the job at this start; a later one of the same run may differ. Of jobs that
    are preempted on purpose, `last_step` is the last that the attempt reported, `repeated_steps` are those that earlier
    attempts had taken already, and `lost_s` are the seconds until it was where the earlier one had been.
    """

    started: str
    cache_key: str | None = None
    duration_s: float | None = None
    exit_codes: dict[str, int] = field(default_factory=dict)
    reason: str | None = None
    last_step: int | None = None
    repeated_steps: int | None = None
    lost_s: float | None = None

    @property
    def started_at(self) -> datetime | None:
        """When it started, in UTC."""
        return as_moment(self.started)


@dataclass
class TrialRecord:
    """A trial of a sweep: its inputs as drawn, the best value of the primary metric that it logged, or why it failed.

    `folder` is relative to the sweep's. While the sweep runs, the best is the best so far.
    """

    number: int
    status: Status = "completed"
    inputs: dict[str, Any] = field(default_factory=dict)
    metric: float | None = None
    reason: str | None = None
    folder: str = ""
    attempts: int = 1
    metric_name: str = ""
    is_best: bool = False
    started: str | None = None
    duration_s: float | None = None


def trials_in_words(trials: Sequence[TrialRecord]) -> str:
    """Return how far a sweep is: `31 of 50, 2 failed, best 0.235 by trial 7`."""
    ended = [trial for trial in trials if trial.status in ("completed", "failed")]
    failed = sum(trial.status == "failed" for trial in ended)
    best = next((trial for trial in trials if trial.is_best), None)
    parts = [f"{len(ended)} of {len(trials)}"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"best {number(best.metric)} by trial {best.number}"] if best is not None else []
    return ", ".join(parts)


@dataclass
class JobRecord:
    """One job of a run. Paths in `outputs` and `logs` are relative to the run folder.

    `command` is the command of rank 0. `reason` says why the job failed or never ran, `reuse` why its result was or was
    not taken from an earlier run. `cache_key` identifies what went into the job, `key_parts` holds a digest of each
    part of the key. `identity` is that of the outputs: equal identities mean equal content. `world_size` counts the
    processes where nodes do not have equally many; `trials` are those of a sweep, each with its inputs and metric.
    `image` is that of its containers, with the digest. `tracking` is the folder of the job's MLflow run, `warnings` are
    those that rank 0 printed.
    """

    name: str
    status: Status = "waiting"
    component: str = ""
    depends_on: list[str] = field(default_factory=list)
    nodes: int = 1
    processes_per_node: int = 1
    distribution: str | None = None
    environment: str | None = None
    image: str | None = None
    command: str = ""
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    started: str | None = None
    duration_s: float | None = None
    attempts: list[AttemptRecord] = field(default_factory=list)
    reused_from: str | None = None
    reuse: str | None = None
    reason: str | None = None
    error_lines: list[str] | None = None
    failed_rank: int | None = None
    cache_key: str | None = None
    identity: str | None = None
    key_parts: dict[str, str] = field(default_factory=dict)
    world_size: int | None = None
    trials: list[TrialRecord] = field(default_factory=list)
    tracking: str | None = None
    warnings: list[str] = field(default_factory=list)
    display_name: str = ""

    @property
    def title(self) -> str:
        """What pages call it: its display name, which is kept only where no other job has the same."""
        return self.display_name or self.name

    @property
    def processes(self) -> int:
        """Processes over all nodes."""
        return self.world_size or self.nodes * self.processes_per_node

    @property
    def state(self) -> str:
        """The status, but `reused` instead of `completed` if the job's results came from another run."""
        return "reused" if self.status == "completed" and self.reused_from else self.status

    def output_folders(self, run_folder: Path) -> dict[str, Path]:
        """Return where its outputs are, by port, without those that a link leads out of the run's folder."""
        return _within(run_folder, self.outputs)

    def log_files(self, run_folder: Path) -> dict[str, Path]:
        """Return its logs that exist, by their names in the record, without those that a link leads elsewhere."""
        places = _within(run_folder, {log: log for log in self.logs})
        return {log: place for log, place in places.items() if place.is_file()}

    def tracked_folder(self, run_folder: Path) -> Path | None:
        """Return the folder of its MLflow run, which is in a store of that name; None for any other, and without."""
        place = (run_folder / self.tracking).resolve() if self.tracking else None
        is_of_mlflow = place is not None and len(place.parents) > 2 and place.parents[1].name == "mlruns"
        return place if is_of_mlflow else None


@dataclass
class RunRecord:
    """A run: its jobs in the order in which they can run, and the pipeline's own inputs and outputs.

    Names can be used again, in another folder or after a clean; `id` is unique to this run, and also the id of its
    MLflow run. `folder` is where the record was written or read; it is not in the file, so a run folder can be moved.
    """

    name: str
    pipeline: str
    id: str = ""
    pipeline_file: str = ""
    started: str = ""
    status: Status = "running"
    commit: str | None = None
    experiment: str = ""
    duration_s: float | None = None
    reason: str | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    max_processes: int | None = None
    strict: bool = False
    python: str | None = None
    environments: str = "current"
    without_gpus: bool = False
    reuse_imports: bool = False
    only: str | None = None
    from_job: str | None = None
    notes: list[str] = field(default_factory=list)
    display_name: str = ""
    folder: Path = field(default=Path(), compare=False)

    @property
    def started_at(self) -> datetime | None:
        """When it started, in UTC."""
        return as_moment(self.started)

    def end(self, status: Status, reason: str) -> None:
        """End the record before its jobs have ended: running jobs become canceled, waiting ones skipped."""
        self.status, self.reason = status, reason
        records: list[JobRecord | TrialRecord] = [*self.jobs.values()]
        records += [trial for job in self.jobs.values() for trial in job.trials]
        for each in records:
            if each.status == "running":
                each.status = "canceled"
            elif each.status == "waiting":
                each.status = "skipped"


def as_document(record: RunRecord) -> dict[str, Any]:
    """Return the record as in run.json. It shares lists and dictionaries with the record."""
    document = {**vars(record), "jobs": {name: _job_document(job) for name, job in record.jobs.items()}}
    del document["folder"]
    return {**document, "format": RUN_FORMAT}


def _job_document(job: JobRecord) -> dict[str, Any]:
    rows = {"attempts": [vars(attempt) for attempt in job.attempts], "trials": [vars(trial) for trial in job.trials]}
    document = {**vars(job), **rows}
    del document["name"]
    return document


_SECONDS_BETWEEN_WAITS = 1.0


class RunRecordWriter:
    """Writes run.json again and again, and encodes only jobs that have changed.

    With 500 jobs that takes 1.2 ms for each change instead of 5.7, a sixth of the time of a run of short ones.
    """

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._encoded_jobs: dict[str, str] = {}
        self._waited_for_disk = time.monotonic()
        self.file = record.folder / RECORD_FILE

    def write(self, changed: Collection[str] | None = None) -> None:
        """Replace run.json in the record's folder. Raise OSError if that fails, leaving the file as it was.

        Only the jobs `changed` may differ from what was written last, besides those that run; without it all.
        The disk is waited for when the run has ended, and each second before: a power failure costs what changed since.
        """
        record = self._record
        for name, job in record.jobs.items():
            is_new = changed is None or name in changed or name not in self._encoded_jobs
            if is_new or job.status == "running":
                # A line for each job: json's own indentation is ten times slower.
                self._encoded_jobs[name] = f"  {_as_json(name)}: {_as_json(_job_document(job))}"
        document = {**vars(record), "format": RUN_FORMAT}
        del document["folder"], document["jobs"]
        fields = ",\n".join(f" {_as_json(name)}: {_as_json(value)}" for name, value in document.items())
        jobs = ",\n".join(self._encoded_jobs[name] for name in record.jobs)
        now = time.monotonic()
        is_durable = record.status != "running" or now - self._waited_for_disk >= _SECONDS_BETWEEN_WAITS
        replace_text(self.file, f'{{\n{fields},\n "jobs": {{\n{jobs}\n }}\n}}\n', is_durable=is_durable)
        self._waited_for_disk = now if is_durable else self._waited_for_disk


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_run_record(run_folder: Path) -> RunRecord:
    """Return the record in a run's folder. Raise InvalidRunRecord when it is missing or invalid."""
    file = run_folder / RECORD_FILE
    try:
        document = json.loads(read_regular(file, _LARGEST_BYTES))
    except OSError as error:
        reason = error.strerror or error
        raise InvalidRunRecord(f"{file}: cannot be read ({reason}); is {run_folder} the folder of a run?") from error
    except (ValueError, RecursionError) as error:
        raise InvalidRunRecord(f"{file}: invalid JSON: {error}") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != RUN_FORMAT:
        raise InvalidRunRecord(f"{file}: unknown format {found!r}; this version of Trainyard reads {RUN_FORMAT!r}")
    try:
        return _checked_record(document, run_folder)
    except (ValueError, RecursionError) as error:
        raise InvalidRunRecord(f"{file}: invalid {RUN_FORMAT}: {error}") from error


def _checked_record(document: dict[str, Any], run_folder: Path) -> RunRecord:
    if not isinstance(document.get("jobs"), dict):
        raise ValueError("expected an object 'jobs'")
    jobs = {
        name: {**fields, "name": name} if isinstance(fields, dict) else fields
        for name, fields in document["jobs"].items()
    }
    record = read_dataclass(RunRecord, {**document, "jobs": jobs}, "run")
    record.folder = run_folder
    _check_names(record)
    as_moment(record.started)
    for job in record.jobs.values():
        for started in (job.started, *(attempt.started for attempt in job.attempts)):
            as_moment(started)
    return record


def _check_names(record: RunRecord) -> None:
    """Raise ValueError for wrong names, files outside the run's folder, and jobs that wait in a circle."""
    names = {"name": record.name, **({"id": record.id} if record.id else {})}
    for key, name in {**names, **{f"jobs.{name}": name for name in record.jobs}}.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{key}: expected letters, digits, '.', '-' and '_', not {name!r}")
    paths = [("outputs", path) for path in record.outputs.values()]
    for name, job in record.jobs.items():
        paths += [(f"jobs.{name}", path) for path in (*job.outputs.values(), *job.logs)]
        unknown = [each for each in job.depends_on if each not in record.jobs]
        if unknown:
            raise ValueError(f"jobs.{name}.depends_on: unknown job {unknown[0]!r}")
    for where, path in paths:
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ValueError(f"{where}: {path!r} is outside the run's folder")
    try:
        graphlib.TopologicalSorter({name: job.depends_on for name, job in record.jobs.items()}).prepare()
    except graphlib.CycleError as error:
        raise ValueError(f"jobs wait for each other: {' -> '.join(error.args[1])}") from None


def _within(run_folder: Path, paths: Mapping[str, str]) -> dict[str, Path]:
    """Return where paths of a record lead, without those that a link leads out of the run's folder."""
    root = run_folder.resolve() if paths else run_folder
    places = {name: (root / path).resolve() for name, path in paths.items()}
    return {name: place for name, place in places.items() if place.is_relative_to(root)}


def as_moment(text: str | None) -> datetime | None:
    """Return the moment that an ISO 8601 text names, in UTC; None for no text.

    Python 3.10 does not read the `Z` that later versions do.
    """
    if not text:
        return None
    moment = datetime.fromisoformat(text.removesuffix("Z") + "+00:00" if text.endswith("Z") else text)
    try:
        return moment.astimezone(timezone.utc) if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    except OverflowError:
        raise ValueError(f"{text!r} is not within the years 1 to 9999") from None
