"""The runs that there are: found by name, their logs, and which of them can go."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from trainyard.foundation.suggestions import did_you_mean
from trainyard.local.errors import RunError, UsageError
from trainyard.local.records import RECORD_FILE, RunRecord, is_active, list_runs, read_record
from trainyard.local.tracking_store import TrackingStore, experiment_id_of, job_run_id


def find_run(runs_folder: Path, name: str | None) -> RunRecord:
    """The run of this name, a run folder given as a path, or without a name the newest run.

    Raises `UsageError` when there is none, with the nearest name that there is.
    """
    if name is not None:
        for folder in (runs_folder / name, Path(name)):
            if (folder / RECORD_FILE).is_file():
                return read_record(folder)
    records = list_runs(runs_folder)
    if name is None and records:
        return records[0]
    if name is None:
        raise UsageError(f"{runs_folder}: there are no runs yet; `trainyard run FILE` makes one")
    raise UsageError(f"there is no run {name!r}. {did_you_mean(name, [record.name for record in records])}")


def log_files(record: RunRecord, job: str | None = None, rank: int | None = None) -> list[Path]:
    """The logs of a run, or of one job, or of one of its ranks, in the order of jobs and ranks; those that exist.

    Raises `UsageError` for a job or rank that the run does not have.
    """
    if job is not None and job not in record.jobs:
        raise UsageError(f"run {record.name} has no job {job!r}. {did_you_mean(job, record.jobs)}")
    found: list[Path] = []
    for name in [job] if job is not None else list(record.jobs):
        logs = record.jobs[name].logs
        if rank is not None and job is not None and not 0 <= rank < len(logs):
            raise UsageError(f"job {job!r} of run {record.name} has no rank {rank}; it has {len(logs)} logs, from 0")
        chosen = logs if rank is None else logs[rank : rank + 1]
        found += [record.folder / log for log in chosen]
    ranks = max((len(record.jobs[name].logs) for name in record.jobs), default=0)
    if rank is not None and not 0 <= rank < ranks:
        there_are = f"its jobs have rank 0{f' to {ranks - 1}' if ranks > 1 else ''}" if ranks else "it has no logs yet"
        raise UsageError(f"run {record.name} has no rank {rank}; {there_are}")
    return [log for log in found if log.is_file()]


def runs_to_clean(
    runs_folder: Path, *, keep: int | None = None, older_than_days: float | None = None
) -> list[RunRecord]:
    """The runs that `clean` would remove: all but the newest `keep`, and of these the ones older than so many days.

    A run that is under way is never among them.
    """
    records = list_runs(runs_folder)[keep or 0 :]
    if older_than_days is not None:
        limit = datetime.now(timezone.utc) - timedelta(days=older_than_days)
        records = [record for record in records if datetime.fromisoformat(record.started) < limit]
    return [record for record in records if not is_active(record.folder)]


def clean(runs_folder: Path, records: Sequence[RunRecord]) -> int:
    """Remove these runs, their MLflow runs too; gives the bytes freed.

    Outputs that a later run reuses stay: they are hard links. Raises `RunError` when a folder cannot be removed.
    """
    store = TrackingStore(runs_folder.resolve().parent / "mlruns")
    freed_bytes = 0
    for record in records:
        freed_bytes += _bytes_held_alone(record.folder)
        try:
            shutil.rmtree(record.folder)
        except OSError as error:
            raise RunError(f"{record.folder}: cannot be removed ({error.strerror or error})") from error
        experiment_id = experiment_id_of(record.experiment)
        store.remove_run(experiment_id, record.id)
        for job in record.jobs:
            store.remove_run(experiment_id, job_run_id(record.id, job))
    return freed_bytes


def _bytes_held_alone(folder: Path) -> int:
    """What removing a folder gives back: files with other hard links give nothing."""
    files = [path.lstat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(status.st_size for status in files if status.st_nlink == 1)
