"""run.json: what a run says about itself, and how it is written and read.

The file is replaced as a whole at every change of state, so that a killed run leaves a readable one.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainyard.local.errors import RunError, UsageError
from trainyard.local.whole_files import replace_text

RUN_FORMAT = "trainyard.run/1"
RECORD_FILE = "run.json"
LOCK_FILE = "run.lock"

NOTHING_CHANGED = "nothing changed"
"""The `reuse` of a job whose result was found in the cache, and not merely taken because the job was left out."""

Status = Literal["waiting", "running", "completed", "failed", "canceled", "skipped"]


@dataclass
class AttemptRecord:
    """One start of a job. `exit_codes` is by rank; a negative code is the signal that ended it.

    `cache_key` names what went into the job at this start; a later one of the same run may differ.
    """

    started: str
    cache_key: str | None = None
    duration_s: float | None = None
    exit_codes: dict[str, int] = field(default_factory=dict)
    reason: str | None = None


@dataclass
class JobRecord:
    """One job of a run. Paths in `outputs` and `logs` are relative to the run folder.

    `command` is as filled in for rank 0. `reason` says why the job failed or never ran, `reuse` why it was or was not
    taken from an earlier run. `cache_key` names what went into the job, `identity` what came out of it: two jobs whose
    inputs have the same identities read the same content. `key_parts` holds a digest of each thing in the key.
    """

    component: str
    depends_on: list[str]
    nodes: int
    processes_per_node: int
    status: Status = "waiting"
    distribution: str | None = None
    environment: str | None = None
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

    @property
    def processes(self) -> int:
        """Processes over all nodes."""
        return self.nodes * self.processes_per_node


@dataclass
class RunRecord:
    """A run: its jobs in the order in which they can run, and the pipeline's own inputs and outputs.

    Names can be used again, in another folder or after a clean; `id` is this run's alone, and its MLflow run's.
    `folder` is where the record was written or read, and stands not in the file, so that a run folder can be moved.
    """

    name: str
    id: str
    pipeline: str
    pipeline_file: str
    started: str
    status: Status = "running"
    experiment: str = ""
    duration_s: float | None = None
    reason: str | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    max_processes: int | None = None
    only: str | None = None
    from_job: str | None = None
    notes: list[str] = field(default_factory=list)
    format: str = RUN_FORMAT
    folder: Path = field(default=Path(), compare=False)

    def end(self, status: Status, reason: str) -> None:
        """Say that the run is over before its jobs are: what ran is canceled, what waited is skipped."""
        self.status, self.reason = status, reason
        for job in self.jobs.values():
            if job.status == "running":
                job.status = "canceled"
            elif job.status == "waiting":
                job.status = "skipped"


def write_record(record: RunRecord) -> None:
    """Replace run.json in the record's folder, whole or not at all.

    Raises `RunError` when that cannot be written (a full disk, a read-only folder).
    """
    write_json(record.folder / RECORD_FILE, as_document(record))


def as_document(record: RunRecord) -> dict[str, Any]:
    """The record as run.json has it."""
    document = dataclasses.asdict(record)
    del document["folder"]
    return document


def write_json(file: Path, document: object) -> None:
    """Replace a JSON file atomically. Raises `RunError` naming the file when the system refuses."""
    try:
        replace_text(file, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise cannot_write(file, error) from error


def cannot_write(path: Path, error: OSError) -> RunError:
    """The one message for every place that cannot be written: what, why, and what to do."""
    return RunError(
        f"{path}: cannot be written ({error.strerror or error}); free some space or make it writable, "
        "or put runs elsewhere with --run-dir DIR"
    )


def read_record(run_folder: Path) -> RunRecord:
    """What run.json in this folder says.

    A record that says `running` although nobody holds its lock is of a runner that was killed: it is given as
    canceled, with that reason. Raises `UsageError` when there is no record, or one of another format.
    """
    file = run_folder / RECORD_FILE
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be read ({error.strerror or error}); is {run_folder} a run's folder?"
        ) from error
    except ValueError as error:
        raise UsageError(f"{file}: is not JSON: {error}") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != RUN_FORMAT:
        raise UsageError(f"{file}: its format is {found!r}, and this version of Trainyard reads {RUN_FORMAT!r} only")
    try:
        record = _as_record(document, run_folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{file}: does not have the form of {RUN_FORMAT}: {error}") from error
    if record.status == "running" and not is_active(run_folder):
        record.end("canceled", "the runner was ended before it could say how the run went")
    return record


def _as_record(document: dict[str, Any], run_folder: Path) -> RunRecord:
    jobs = {}
    for name, fields in document["jobs"].items():
        attempts = [AttemptRecord(**attempt) for attempt in fields.get("attempts", [])]
        jobs[name] = JobRecord(**{**fields, "attempts": attempts})
    return RunRecord(**{**document, "jobs": jobs, "folder": run_folder})


def list_runs(runs_folder: Path) -> list[RunRecord]:
    """Every run in this folder, newest first. Folders without a readable record are left out."""
    records = []
    for file in runs_folder.glob(f"*/{RECORD_FILE}"):
        try:
            records.append(read_record(file.parent))
        except UsageError:
            continue
    return sorted(records, key=lambda record: (record.started, record.name), reverse=True)


@contextmanager
def hold_lock(run_folder: Path) -> Iterator[None]:
    """Hold the run's lock: the sign that its runner lives, which the system takes back when the runner dies.

    Raises `UsageError` when another runner holds it.
    """
    try:
        lock = (run_folder / LOCK_FILE).open("w")
    except OSError as error:
        raise cannot_write(run_folder / LOCK_FILE, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{run_folder}: another process is at work on this run") from None
        yield


def is_active(run_folder: Path) -> bool:
    """Whether a runner is at work on this run."""
    try:
        with (run_folder / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
