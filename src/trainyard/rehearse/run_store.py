"""The folders of runs: made, listed, found by name, cleaned up, and locked by their runner; and the record in each.

run.json is replaced as a whole at every change of state, so that a killed run leaves a readable one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from itertools import chain, count
from pathlib import Path

from trainyard.git import NoGit, ask_git, index_of, is_object, repository_top
from trainyard.rehearse.errors import RunError, UsageError, writing
from trainyard.rehearse.local_data import LocalPath
from trainyard.rehearse.local_jobs import LocalJob, LocalPipeline, WrittenValue
from trainyard.rehearse.tracking_store import TrackingStore
from trainyard.settings.files import open_lock_file, read_regular
from trainyard.settings.run_record import (
    RECORD_FILE,
    InvalidRunRecord,
    JobRecord,
    RunRecord,
    RunRecordWriter,
    read_run_record,
)
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.resolved import JobOutput

LOCK_FILE = "run.lock"
_GIT_SECONDS = 10
"""In a huge repository on slow storage, a run is not delayed for its commit."""
_LARGEST_COMPARED_BYTES = 64 * 2**20


def new_record(name: str, folder: Path, resolved: LocalPipeline) -> RunRecord:
    """Return the record of a run that has not begun: every job waiting. Its id is the name and a random part."""
    pipeline = resolved.pipeline
    titles = Counter(job.use.job.display_name for job in resolved.jobs.values())
    return RunRecord(
        name=name,
        id=f"{name}-{uuid.uuid4().hex[:12]}",
        pipeline=pipeline.name,
        pipeline_file=str(pipeline.file.resolve()),
        started=now(),
        commit=commit_of(pipeline.file.resolve().parent),
        experiment=pipeline.experiment_name or pipeline.name,
        inputs=dict(resolved.inputs),
        outputs={port: _output_path(source) for port, source in resolved.outputs.items()},
        jobs={job.name: _new_job(job, titles) for job in resolved.jobs.values()},
        notes=list(resolved.notes),
        display_name=pipeline.display_name,
        folder=folder,
    )


def now() -> str:
    """Return this moment in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat()


def _new_job(job: LocalJob, titles: Mapping[str, int]) -> JobRecord:
    component, title, named = job.component, job.use.job.display_name, job.component.environment
    return JobRecord(
        name=job.name,
        component=component.name,
        depends_on=list(job.depends_on),
        nodes=job.counts.nodes,
        processes_per_node=job.counts.processes_per_node,
        world_size=job.processes,
        distribution=job.distribution_type,
        environment=named and (named.reference or named.image or (str(named.build_path) if named.build_path else None)),
        inputs=recorded_inputs(job),
        outputs={port: _output_path(JobOutput(job.name, port)) for port in component.outputs},
        display_name=title if titles[title] == 1 else "",
    )


def recorded_inputs(job: LocalJob) -> dict[str, object]:
    """Return a job's inputs as in its record: literals, and paths as text."""
    return {name: _recorded_input(source) for name, source in job.inputs.items()}


def _recorded_input(source: object) -> object:
    if isinstance(source, WrittenValue):
        source = source.output
    if isinstance(source, JobOutput):
        return _output_path(source)
    return str(source.path) if isinstance(source, LocalPath) else source


def _output_path(output: JobOutput) -> str:
    return f"jobs/{output.job}/outputs/{output.port}"


def write_record(writer: RunRecordWriter, changed: Collection[str] | None = None) -> None:
    """Replace run.json, of whose jobs only `changed` and those that run may have changed; without it all.

    Raise `RunError` if it cannot be written, leaving it as it was.
    """
    with writing(writer.file):
        writer.write(changed)


def read_record(run_folder: Path) -> RunRecord:
    """Return the record in a run's folder. Raise `UsageError` when it is missing or invalid.

    A record that says `running` although no process holds its lock belongs to a runner that was killed: it is returned
    as canceled, with that reason, and corrected where its folder can be written, as are its MLflow runs.
    """
    record = _read_record(run_folder)
    if record.status != "running" or is_active(run_folder):
        return record
    record.end("canceled", "the runner was killed before it could record how the run ended")
    with suppress(RunError, UsageError), hold_lock(run_folder):
        now_there = _read_record(run_folder)
        if now_there.status != "running":  # another command was faster
            return now_there
        write_record(RunRecordWriter(record))
        store = _store_beside(run_folder.parent)
        with writing(store.folder):
            store.end_killed(store.identity(record.experiment, record.id))
    return record


def _store_beside(runs_folder: Path) -> TrackingStore:
    """Return the store of runs in this folder; a stranger's record could name another."""
    return TrackingStore(runs_folder.resolve().parent / "mlruns")


def _read_record(run_folder: Path) -> RunRecord:
    try:
        return read_run_record(run_folder)
    except InvalidRunRecord as error:
        raise UsageError(str(error)) from error


@contextmanager
def hold_lock(run_folder: Path) -> Iterator[None]:
    """Hold the run's lock, the sign that its runner is alive; the system releases it when the runner dies.

    Raise `UsageError` when another runner holds it.
    """
    with writing(run_folder / LOCK_FILE):
        lock = open_lock_file(run_folder / LOCK_FILE)
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{run_folder}: another process is working on this run") from None
        yield


def is_active(run_folder: Path) -> bool:
    """Return whether a runner is working on this run."""
    try:
        lock = os.open(run_folder / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def commit_of(folder: Path) -> str | None:
    """Return the commit of the repository that a folder is in, followed by ` + changes` where files have been changed.

    None outside a repository, without git, and where git does not answer in time.
    """
    try:
        top = repository_top(folder)
        if top is None or not (commit := ask_git(folder, "rev-parse", "HEAD")).succeeded:
            return None
        return f"{commit.text} + changes" if _has_changes(top) else commit.text
    except NoGit:
        return None


def _has_changes(top: Path) -> bool:
    """Return whether a tracked file differs from the commit. `git status` would run filters that its settings name."""
    if not ask_git(top, "diff-index", "--cached", "--quiet", "HEAD", seconds=_GIT_SECONDS).succeeded:
        return True
    listed = ask_git(top, "diff-files", "--name-only", "-z", "--ignore-submodules=all", seconds=_GIT_SECONDS).output
    touched = [name for name in listed.decode("utf-8", "surrogateescape").split("\0") if name]
    if not touched:
        return False
    objects = index_of(top, *touched)
    return not all(_is_unchanged(top / name, objects.get(top / name, "")) for name in touched)


def _is_unchanged(file: Path, name: str) -> bool:
    try:
        content = os.fsencode(file.readlink()) if file.is_symlink() else read_regular(file, _LARGEST_COMPARED_BYTES)
    except OSError:
        return False
    return is_object(name, content)


# A run's name is part of the ids of its MLflow runs, whose length MLflow limits.
_FOLDERS_OF_KINDS = ("", "pipelines", "jobs", ".azureml")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def name_of_runs(pipeline: str, file: Path) -> str:
    """Return what runs of a pipeline are called: its name, after that of its folder if that says more than its kind.

    Where each job has a folder of its own, the files are all called `job.yml` or `pipeline.yml`.
    """
    folder = file.resolve().parent
    says_nothing = folder.name in _FOLDERS_OF_KINDS or folder == Path.cwd()
    return pipeline if says_nothing else f"{folder.name}-{pipeline}"


def create_run_folder(runs_folder: Path, run_folder: Path | None, name: str | None, pipeline: str) -> tuple[str, Path]:
    """Make the folder of a new run; return the run's name and the folder's absolute path.

    Without a name it is the time and `pipeline`, as in `20261120-213045-ddp`, which sorts by age. Raise
    `UsageError` for an invalid name or one that is taken, `RunError` when the folder cannot be made.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: use at most 100 letters, digits, - and _, beginning with a letter or digit")
    if run_folder is not None:
        folder = _create(run_folder.resolve(), may_exist=True)
        _link_among_runs(runs_folder, folder, name or _valid_name(folder.name))
        return name or _valid_name(folder.name), folder
    runs_folder = runs_folder.resolve()
    if name is not None:
        return name, _create(runs_folder / name, may_exist=False)
    base = f"{time.strftime('%Y%m%d-%H%M%S')}-{_valid_name(pipeline)}"
    for candidate in chain([base], (f"{base}-{number}" for number in count(2))):
        with suppress(UsageError):
            return candidate, _create(runs_folder / candidate, may_exist=False)
    raise AssertionError("there is always another name")


def _link_among_runs(runs_folder: Path, folder: Path, name: str) -> None:
    """Have a run that is kept elsewhere among the others, unless they cannot be written to."""
    if runs_folder.absolute().is_relative_to(folder):
        return  # it keeps what a project that cannot be written would
    with suppress(OSError):
        runs_folder.mkdir(parents=True, exist_ok=True)
        for number in count(2):
            link = runs_folder / name
            if link.is_symlink() and not link.exists():
                link.unlink()  # that run was removed
            if not link.is_symlink() and not link.exists():
                link.symlink_to(folder)
                return
            name = f"{name.rpartition('~')[0] or name}~{number}"


def _valid_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:80] or "run"


def _create(folder: Path, *, may_exist: bool) -> Path:
    """Make the folder; one that exists is accepted only if it was named as a folder and holds `.trainyard` at most."""
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)  # its logs and models are the user's, on a machine that others share
        except FileExistsError:
            if may_exist and folder.is_dir() and all(entry.name == ".trainyard" for entry in folder.iterdir()):
                return folder
            is_run = (folder / RECORD_FILE).exists() or not may_exist
            what = "a run of this name already exists; choose another name"
            other = "exists and is not an empty folder; choose another folder for the run"
            raise UsageError(f"{folder}: {what if is_run else other}") from None
    return folder


def list_runs(runs_folder: Path, note: Callable[[str], object] = lambda text: None) -> list[RunRecord]:
    """Return every run in a folder, newest first. `note` is told of each whose record cannot be read."""
    records = []
    for file in sorted(runs_folder.glob(f"*/{RECORD_FILE}")):
        try:
            records.append(read_record(file.parent))
        except UsageError as error:
            note(str(error))
    return sorted(records, key=lambda record: (record.started, record.name), reverse=True)


def find_run(runs_folder: Path, name: str | None) -> RunRecord:
    """Return the run of this name, or in this folder; without a name the newest run.

    Raise `UsageError` when there is none, with the closest name that exists.
    """
    if name is not None:
        for folder in (runs_folder / name, Path(name)):
            if (folder / RECORD_FILE).is_file():
                return read_record(folder)
    records = list_runs(runs_folder)
    if name is None and records:
        return records[0]
    if name is None:
        raise UsageError(f"{runs_folder}: no runs yet; start one with `trainyard run FILE`")
    hint = did_you_mean(name, [record.name for record in records], "There are no runs yet.")
    raise UsageError(f"unknown run {name!r}. {hint}")


def log_files(record: RunRecord, job: str | None = None, rank: int | None = None) -> list[Path]:
    """Return the existing logs of a run, of one of its jobs or of one rank, in the order of jobs and ranks.

    Raise `UsageError` for a job or rank that the run does not have.
    """
    if job is not None and job not in record.jobs:
        raise UsageError(f"run {record.name} has no job {job!r}. {did_you_mean(job, record.jobs)}")
    jobs = [record.jobs[job]] if job is not None else list(record.jobs.values())
    ranks = max((len(chosen_job.logs) for chosen_job in jobs), default=0)
    if rank is not None and not 0 <= rank < ranks:
        owner = f"job {job!r} of run {record.name}" if job is not None else f"run {record.name}"
        raise UsageError(f"{owner} has no rank {rank}; {ranks_in_words(ranks)}")
    files: list[Path] = []
    for chosen_job in jobs:
        chosen = chosen_job.logs if rank is None else chosen_job.logs[rank : rank + 1]
        files += [file for log, file in chosen_job.log_files(record.folder).items() if log in chosen]
    return files


def ranks_in_words(count: int) -> str:
    """Return `its ranks are 0 to 3`, for a message about one that is not among them."""
    if count == 0:
        return "no logs yet"
    return f"its ranks are 0 to {count - 1}" if count > 1 else "its only rank is 0"


def runs_to_clean(
    runs_folder: Path, *, keep: int | None = None, older_than_days: float | None = None
) -> list[RunRecord]:
    """Return the runs that `clean` would remove: all but the newest `keep`, and of these only older ones if asked.

    A run that is under way is never among them.
    """
    records = list_runs(runs_folder)[keep or 0 :]
    if older_than_days is not None:
        limit = datetime.now(timezone.utc) - timedelta(days=older_than_days)
        records = [record for record in records if record.started_at is not None and record.started_at < limit]
    return [record for record in records if not record.folder.is_symlink() and not is_active(record.folder)]


def clean(runs_folder: Path, records: Sequence[RunRecord]) -> int:
    """Remove these runs and their MLflow runs; return the bytes freed.

    Outputs that a later run reuses stay, because they are hard links. Raise `RunError` when a folder cannot be removed.
    """
    store = _store_beside(runs_folder)
    freed_bytes = 0
    for record in records:
        freed_bytes += bytes_held_alone(record.folder)
        try:
            shutil.rmtree(record.folder)
        except OSError as error:
            raise RunError(f"{record.folder}: cannot be removed ({error.strerror or error})") from error
        if not record.id:
            continue  # written before runs had one
        for folder in store.folders_of(store.identity(record.experiment, record.id)):
            shutil.rmtree(folder, ignore_errors=True)
    return freed_bytes


def bytes_held_alone(folder: Path) -> int:
    """Return the bytes that removing a folder frees: files with other hard links free none."""
    files = [path.lstat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sum(status.st_size for status in files if status.st_nlink == 1)
