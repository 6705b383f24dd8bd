"""Runs a pipeline on this machine: checks all of it first, then runs its jobs in order."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from trainyard.rehearse.cache import StepCache, local_python_digest
from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.command import fill_command
from trainyard.rehearse.digests import ContentDigests
from trainyard.rehearse.display import Display
from trainyard.rehearse.errors import UsageError
from trainyard.rehearse.faults import Fault, faults_of
from trainyard.rehearse.guardian import Guardian
from trainyard.rehearse.job_work import RunContext
from trainyard.rehearse.kinds.mpi_jobs import check_open_mpi
from trainyard.rehearse.kinds.sampling import trial_component, trials
from trainyard.rehearse.records import new_record
from trainyard.rehearse.resolution import (
    KeptData,
    LocalPath,
    ResolvedJob,
    ResolvedPipeline,
    Source,
    WrittenValue,
    resolve,
)
from trainyard.rehearse.reuse import ReusedResult, Selection, find_reused, select
from trainyard.rehearse.run_store import create_run_folder, list_runs
from trainyard.rehearse.scheduler import Scheduler
from trainyard.rehearse.snapshot import Snapshot, snapshot_of
from trainyard.rehearse.tracking_store import RunIdentity, TrackingStore
from trainyard.settings.run_record import RunRecord
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component, Pipeline, Sweep
from trainyard.spec.resolved import JobOutput
from trainyard.spec.set_inputs import resolve_with, with_absolute_paths

if TYPE_CHECKING:
    from trainyard.rehearse.containers.images import ContainerImage

EnvironmentChoice = Literal["current", "venv", "docker"]
"""What jobs run in: the Python that is given, a virtual environment of each, or containers of each one's image."""

# Every workspace has it, as its default.
_DEFAULT_DATASTORE = "workspaceblobstore"
ENVIRONMENT_CHOICES: tuple[EnvironmentChoice, ...] = get_args(EnvironmentChoice)
_PIP_INSTALL = re.compile(r"\bpip3? install\b")


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
    environments: EnvironmentChoice = "current"

    @property
    def state_folder(self) -> Path:
        """What runs share: the cache, the tracking store, downloads, datastores."""
        return self.runs_folder.resolve().parent

    @property
    def environments_folder(self) -> Path:
        """Where virtual environments are kept, and the logs of what is built."""
        return self.state_folder / "cache" / "environments"

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
    software = _software(checked, options, display)
    name, folder = create_run_folder(options.runs_folder, options.run_folder, options.name, pipeline.name)
    record = _record(name, folder, checked, options)
    record.notes += _environment_notes(checked, software, options, folder)
    return _scheduler(record, checked, options, display, software).run(reused)


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
        environments=next((each for each in ENVIRONMENT_CHOICES if each == record.environments), "current"),
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
    software = _software(checked, options, display)
    return _scheduler(resumed, checked, options, display, software, seconds_spent=record.duration_s or 0.0).run(reused)


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
        in_containers=options.environments == "docker",
    )
    in_mpi = any(resolved.jobs[name].distribution == "mpi" for name in selection.run)
    if in_mpi and options.environments != "docker":
        check_open_mpi()
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


@dataclass(frozen=True)
class _Software:
    """What jobs run in, by name, where it is not the Python of the options: a Python of their own, or an image."""

    pythons: Mapping[str, Path] = field(default_factory=dict)
    images: Mapping[str, ContainerImage] = field(default_factory=dict)


def _software(checked: CheckedPipeline, options: RunOptions, display: Display) -> _Software:
    jobs, folder = _jobs_to_run(checked), options.environments_folder
    if options.environments == "venv":
        from trainyard.rehearse.virtual_environments import build_environments  # packaging takes 30 ms to import

        return _Software(pythons=build_environments(jobs, folder, options.python, display.note))
    if options.environments == "docker":
        from trainyard.rehearse.containers.engine import find_engine
        from trainyard.rehearse.containers.images import images_of

        engine, digests = find_engine(os.environ), _digests(options, display)
        return _Software(images=images_of(jobs, engine, folder, options.state_folder, digests, display.note))
    return _Software()


def _environment_notes(
    checked: CheckedPipeline, software: _Software, options: RunOptions, run_folder: Path
) -> list[str]:
    own = software.pythons.keys() | software.images.keys()
    jobs = [job for job in _jobs_to_run(checked) if job.name not in own]
    notes = [
        f"{job.name}: its command installs packages into {options.python}, which keeps them; --python PATH is another"
        for job in jobs
        if _PIP_INSTALL.search(job.component.command.data)
    ]
    environments = [job.component.environment for job in jobs]
    if not any(each is not None and each.package_source is not None for each in environments):
        return notes
    from trainyard.rehearse.environment_notes import environment_notes

    return notes + environment_notes(jobs, options.python, run_folder)


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
    software: _Software,
    *,
    seconds_spent: float = 0.0,
) -> Scheduler:
    store = TrackingStore(options.state_folder / "mlruns")
    identity = store.identity(record.experiment, record.id)
    context = RunContext(
        name=record.name,
        identity=identity,
        folder=record.folder,
        pipeline=record.pipeline,
        store=store,
        cache=StepCache(options.state_folder / "cache"),
        kept=options.kept,
        digests=_digests(options, display),
        cancellation=Cancellation(),
        guardian=Guardian(record.folder, _containers_of(software, identity)),
        grace_seconds=options.grace_seconds,
        use_cache=options.use_cache,
        force_rerun=checked.resolved.pipeline.force_rerun,
        default_datastore=checked.resolved.pipeline.default_datastore.removeprefix("azureml:") or _DEFAULT_DATASTORE,
        strict=options.strict,
        python=options.python,
        pythons=software.pythons,
        images=software.images,
        named_job=checked.selection.named,
        faults=checked.faults,
        notice_seconds=options.notice_seconds,
    )
    return Scheduler(
        context, record, checked.resolved, checked.selection, checked.snapshots, display, seconds_spent=seconds_spent
    )


def _containers_of(software: _Software, identity: RunIdentity) -> tuple[str, str] | None:
    """The program that ends this run's containers, and their label; None for a run without containers."""
    if not software.images:
        return None
    from trainyard.rehearse.containers.container import run_label

    return next(iter(software.images.values())).engine.program, run_label(identity)
