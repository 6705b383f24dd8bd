"""Runs a pipeline on this machine: checks all of it first, then runs its jobs in order."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trainyard.foundation.run_record import RunRecord
from trainyard.local.cache import StepCache, local_python_digest
from trainyard.local.cancellation import Cancellation
from trainyard.local.command import fill_command
from trainyard.local.digests import ContentDigests
from trainyard.local.display import Display
from trainyard.local.errors import UsageError
from trainyard.local.faults import Fault, faults_of
from trainyard.local.job_work import RunContext
from trainyard.local.kinds.sampling import trials
from trainyard.local.kinds.sweeps import trial_component
from trainyard.local.overrides import resolve_with, with_absolute_paths
from trainyard.local.records import new_record
from trainyard.local.resolution import KeptData, LocalPath, ResolvedJob, ResolvedPipeline, Source, WrittenValue, resolve
from trainyard.local.reuse import ReusedResult, Selection, find_reused, select
from trainyard.local.run_store import create_run_folder, list_runs
from trainyard.local.scheduler import Scheduler
from trainyard.local.snapshot import Snapshot, snapshot_of
from trainyard.local.tracking_store import TrackingStore
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component, Pipeline, Sweep
from trainyard.spec.resolution import JobOutput


@dataclass(frozen=True)
class RunOptions:
    """How to run: the options of `trainyard run`.

    `grace_seconds` is the time between SIGTERM and SIGKILL, `notice_seconds` that of a preemption: Azure gives 30.
    """

    runs_folder: Path
    name: str | None = None
    run_folder: Path | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    max_processes: int | None = None
    only: str | None = None
    from_job: str | None = None
    use_cache: bool = True
    grace_seconds: float = 10.0
    strict: bool = False
    python: Path = Path(sys.executable)
    preempt: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()
    notice_seconds: float = 30.0
    environments: Literal["current", "venv"] = "current"

    @property
    def state_folder(self) -> Path:
        """What runs share: the cache, the tracking store, downloads, datastores."""
        return self.runs_folder.resolve().parent

    @property
    def kept(self) -> KeptData:
        """Where data with an address lies."""
        return KeptData(self.state_folder / "cache" / "downloads", self.state_folder / "datastores")


@dataclass(frozen=True)
class CheckedPipeline:
    """A pipeline of which everything has been checked that can be checked before a process starts."""

    resolved: ResolvedPipeline
    selection: Selection
    snapshots: dict[str, Snapshot]
    faults: dict[str, list[Fault]]


def run_pipeline(pipeline: Pipeline, options: RunOptions, display: Display) -> RunRecord:
    """Run a pipeline to its end; return its record, whose `status` says how the run ended.

    Raise `SpecError`, `UsageError` or `RunError` before anything has started when the pipeline, the command line or
    this machine does not allow the run, and `RunError` when the disk fails during it. Ctrl-C and SIGTERM end all
    processes and cancel the run.
    """
    checked = check(pipeline, options, options.run_folder or options.runs_folder / (options.name or "run"))
    reused = _reused(checked, checked.selection.reused, options, display)
    pythons = _pythons(checked, options, display)
    name, folder = create_run_folder(options.runs_folder, options.run_folder, options.name, pipeline.name)
    record = _record(name, folder, checked, options)
    record.notes += _environment_notes(checked, pythons, options, folder)
    return _scheduler(record, checked, options, display, pythons).run(reused)


def resume_run(record: RunRecord, pipeline: Pipeline, options: RunOptions, display: Display) -> RunRecord:
    """Run the jobs that a run has not completed, in the run's own folder; completed jobs are kept.

    A restarted job finds the outputs that it wrote before, so a training continues from its checkpoints. `pipeline` is
    the one that the record names, `options` says where runs lie; everything else comes from the record.
    """
    if record.status == "completed":
        raise UsageError(f"run {record.name} is already completed")
    options = dataclasses.replace(
        options,
        overrides=record.overrides,
        max_processes=record.max_processes,
        strict=record.strict,
        python=Path(record.python) if record.python else options.python,
        only=record.only,
        from_job=record.from_job,
        environments="venv" if record.environments == "venv" else "current",
    )
    checked = check(pipeline, options, record.folder)
    if set(checked.resolved.jobs) != set(record.jobs):
        raise UsageError(f"run {record.name} cannot be resumed: {record.pipeline_file} has other jobs now")
    resumed = _record(record.name, record.folder.resolve(), checked, options)
    resumed.id, resumed.started = record.id, record.started
    for name, job in record.jobs.items():
        if job.status == "completed":
            resumed.jobs[name] = job
        resumed.jobs[name].attempts = job.attempts
    not_linked_yet = {name for name in checked.selection.reused if record.jobs[name].status != "completed"}
    reused = _reused(checked, not_linked_yet, options, display)
    pythons = _pythons(checked, options, display)
    return _scheduler(resumed, checked, options, display, pythons, seconds_spent=record.duration_s or 0.0).run(reused)


def check(pipeline: Pipeline, options: RunOptions, run_folder: Path) -> CheckedPipeline:
    """Check all that can be checked before a process starts; `run_folder` is that of the run, or a stand-in."""
    resolution = resolve_with(pipeline, options.overrides, strict=options.strict)
    selection = select(resolution.waits_for, only=options.only, from_job=options.from_job)
    local_python_digest(options.python)  # a Python that does not start is an error of the whole run
    resolved = resolve(
        pipeline,
        resolution,
        kept=options.kept,
        selected=selection.run,
        max_processes=options.max_processes,
        python=options.python,
    )
    faults = faults_of(options.preempt, options.kill, resolved.jobs, selection.run)
    for name in selection.run:
        job = resolved.jobs[name]
        component, drawn = _first_trial(job.component)
        fill_command(
            component,
            {port: _planned(source, run_folder.resolve()) for port, source in job.inputs.items()} | drawn,
            {port: _planned_output(run_folder.resolve(), name, port) for port in job.component.outputs},
            strict=options.strict,
        )
    snapshots = {name: snapshot_of(resolved.jobs[name].component) for name in selection.run}
    return CheckedPipeline(resolved, selection, snapshots, faults)


def _first_trial(component: Component) -> tuple[Component, dict[str, ParameterValue]]:
    """What a sweep's first trial runs, and what is drawn for it; other components themselves."""
    task = component.task
    return (trial_component(component, task), trials(task)[0]) if isinstance(task, Sweep) else (component, {})


def _planned(source: Source, run_folder: Path) -> ParameterValue | Path:
    if isinstance(source, JobOutput):
        return _planned_output(run_folder, source.job, source.port)
    if isinstance(source, WrittenValue):
        return f"<{source.output.job}.{source.output.port}>"
    return source.path if isinstance(source, LocalPath) else source


def _planned_output(run_folder: Path, job: str, port: str) -> Path:
    return run_folder / "jobs" / job / "outputs" / port


def _record(name: str, folder: Path, checked: CheckedPipeline, options: RunOptions) -> RunRecord:
    record = new_record(name, folder, checked.resolved)
    record.overrides = with_absolute_paths(checked.resolved.pipeline, options.overrides)
    record.max_processes, record.strict, record.python = options.max_processes, options.strict, str(options.python)
    record.only, record.from_job = options.only, options.from_job
    record.environments = options.environments
    return record


def _pythons(checked: CheckedPipeline, options: RunOptions, display: Display) -> dict[str, Path]:
    """The Python of each job that has one of its own; the others run with that of the options."""
    if options.environments != "venv":
        return {}
    from trainyard.local.virtual_environments import build_environments  # packaging takes 30 ms to import

    folder = options.state_folder / "cache" / "environments"
    return build_environments(_jobs_to_run(checked), folder, options.python, display.note)


def _environment_notes(
    checked: CheckedPipeline, pythons: Mapping[str, Path], options: RunOptions, run_folder: Path
) -> list[str]:
    jobs = [job for job in _jobs_to_run(checked) if job.name not in pythons and job.component.environment is not None]
    if not any(job.component.environment.names_files for job in jobs if job.component.environment is not None):
        return []
    from trainyard.local.environment_notes import environment_notes

    return environment_notes(jobs, options.python, run_folder)


def _jobs_to_run(checked: CheckedPipeline) -> list[ResolvedJob]:
    return [job for name, job in checked.resolved.jobs.items() if name in checked.selection.run]


def _reused(
    checked: CheckedPipeline, jobs: Collection[str], options: RunOptions, display: Display
) -> dict[str, ReusedResult]:
    runs = list_runs(options.runs_folder) if jobs else []
    return find_reused(checked.resolved, jobs, runs, _digests(options, display))


def _digests(options: RunOptions, display: Display) -> ContentDigests:
    return ContentDigests(options.state_folder / "cache" / "file_digests.json", display.note)


def _scheduler(
    record: RunRecord,
    checked: CheckedPipeline,
    options: RunOptions,
    display: Display,
    pythons: Mapping[str, Path],
    *,
    seconds_spent: float = 0.0,
) -> Scheduler:
    store = TrackingStore(options.state_folder / "mlruns")
    context = RunContext(
        name=record.name,
        identity=store.identity(record.experiment, record.id),
        folder=record.folder,
        pipeline=record.pipeline,
        store=store,
        cache=StepCache(options.state_folder / "cache"),
        kept=options.kept,
        digests=_digests(options, display),
        cancellation=Cancellation(),
        grace_seconds=options.grace_seconds,
        use_cache=options.use_cache,
        force_rerun=checked.resolved.pipeline.force_rerun,
        strict=options.strict,
        python=options.python,
        pythons=pythons,
        named_job=checked.selection.named,
        faults=checked.faults,
        notice_seconds=options.notice_seconds,
    )
    return Scheduler(
        context, record, checked.resolved, checked.selection, checked.snapshots, display, seconds_spent=seconds_spent
    )
