"""The record of a run while it is under way: made, kept in run.json, and locked by its runner.

run.json is replaced as a whole at every change of state, so that a killed run leaves a readable one.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from trainyard.git import NoGit, ask_git, index_of, is_object, repository_top
from trainyard.rehearse.errors import UsageError, cannot_write
from trainyard.rehearse.resolution import LocalPath, ResolvedJob, ResolvedPipeline, WrittenValue
from trainyard.settings.files import open_lock_file, read_regular
from trainyard.settings.run_record import (
    InvalidRunRecord,
    JobRecord,
    RunRecord,
    RunRecordWriter,
    read_run_record,
)
from trainyard.spec.model import Environment
from trainyard.spec.resolved import JobOutput

LOCK_FILE = "run.lock"
_GIT_SECONDS = 10
"""In a huge repository on slow storage, a run is not delayed for its commit."""
_LARGEST_COMPARED_BYTES = 64 * 2**20


def new_record(name: str, folder: Path, resolved: ResolvedPipeline) -> RunRecord:
    """Return the record of a run that has not begun: every job waiting. Its id is the name and a random part."""
    pipeline = resolved.pipeline
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
        jobs={job.name: _new_job(job) for job in resolved.jobs.values()},
        notes=list(resolved.notes),
        folder=folder,
    )


def now() -> str:
    """Return this moment in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat()


def _new_job(job: ResolvedJob) -> JobRecord:
    component = job.component
    return JobRecord(
        name=job.name,
        component=component.name,
        depends_on=list(job.depends_on),
        nodes=job.nodes,
        processes_per_node=job.processes_per_node,
        world_size=job.world_size or None,
        distribution=job.distribution,
        environment=_environment_name(component.environment),
        inputs=recorded_inputs(job),
        outputs={port: _output_path(JobOutput(job.name, port)) for port in component.outputs},
    )


def recorded_inputs(job: ResolvedJob) -> dict[str, object]:
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


def _environment_name(environment: Environment | None) -> str | None:
    if environment is None:
        return None
    build = str(environment.build_path) if environment.build_path else None
    return environment.reference or environment.image or build


def write_record(writer: RunRecordWriter, changed: str | None = None) -> None:
    """Replace run.json, of whose jobs only `changed` and those that run may have changed; without it all.

    Raise `RunError` if it cannot be written, leaving it as it was.
    """
    try:
        writer.write(changed)
    except OSError as error:
        raise cannot_write(writer.file, error) from error


def read_record(run_folder: Path) -> RunRecord:
    """Return the record in a run's folder. Raise `UsageError` when it is missing or invalid.

    A record that says `running` although no process holds its lock belongs to a runner that was killed: it is returned
    as canceled, with that reason.
    """
    try:
        record = read_run_record(run_folder)
    except InvalidRunRecord as error:
        raise UsageError(str(error)) from error
    if record.status == "running" and not is_active(run_folder):
        record.end("canceled", "the runner was killed before it could record how the run ended")
    return record


@contextmanager
def hold_lock(run_folder: Path) -> Iterator[None]:
    """Hold the run's lock, the sign that its runner is alive; the system releases it when the runner dies.

    Raise `UsageError` when another runner holds it.
    """
    try:
        lock = open_lock_file(run_folder / LOCK_FILE)
    except OSError as error:
        raise cannot_write(run_folder / LOCK_FILE, error) from error
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
        commit = ask_git(folder, "rev-parse", "HEAD")
        if top is None or not commit.succeeded:
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
