"""Runs a pipeline on this machine: checks all of it first, then runs its jobs in order."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.printing import short
from trainyard.rehearse.attempts import place_of_input
from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.command import fill_command
from trainyard.rehearse.digests import ContentDigests
from trainyard.rehearse.display import Display
from trainyard.rehearse.errors import UsageError, error_at
from trainyard.rehearse.faults import Fault, faults_of
from trainyard.rehearse.guardian import Guardian
from trainyard.rehearse.job_work import RunContext, Software
from trainyard.rehearse.local_data import LocalPath
from trainyard.rehearse.local_distributions import local_distribution
from trainyard.rehearse.local_jobs import LocalJob, LocalPipeline, Source, WrittenValue, local_pipeline
from trainyard.rehearse.local_python import local_python_digest, require_packages_of_steps
from trainyard.rehearse.machine import folder_for_jobs, job_path
from trainyard.rehearse.outside_files import outside_notes
from trainyard.rehearse.reuse import StepCache
from trainyard.rehearse.run_options import ENVIRONMENT_CHOICES, RunOptions
from trainyard.rehearse.run_store import create_run_folder, list_runs, name_of_runs, new_record
from trainyard.rehearse.scheduler import Scheduler
from trainyard.rehearse.search_space import trial_component, trials
from trainyard.rehearse.selection import ReusedResult, Selection, find_reused, select
from trainyard.rehearse.tracking_store import RunIdentity, TrackingStore
from trainyard.settings.run_record import RunRecord
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.distributions import TensorFlow
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Pipeline, Spark, Sweep
from trainyard.spec.resolved import JobOutput, Known
from trainyard.spec.set_inputs import resolve_with, with_absolute_paths
from trainyard.spec.training_settings import BATCH_DOES_NOT_DIVIDE, REFUSED_BY_STEPS, refused_settings

_PIP_INSTALL = re.compile(r"\bpip3? install\b")
_RECORDED = ("max_processes", "strict", "only", "from_job", "without_gpus", "reuse_imports")
"""Options that a record has under the same names, for a run that is resumed."""


class _CheckedPipeline(NamedTuple):
    """A pipeline of which everything has been checked that can be checked before a process starts."""

    here: LocalPipeline
    selection: Selection
    faults: Mapping[str, list[Fault]]

    @property
    def jobs_to_run(self) -> list[LocalJob]:
        return [job for name, job in self.here.jobs.items() if name in self.selection.run]


class _Found(NamedTuple):
    """What a run takes from this machine: earlier results, what its jobs run in, and the digests of files."""

    reused: dict[str, ReusedResult]
    software: Software
    digests: ContentDigests
    cancellation: Cancellation


def run_pipeline(
    pipeline: Pipeline, options: RunOptions, display: Display, *, suspects: Sequence[Diagnostic] = ()
) -> RunRecord:
    """Run a pipeline to its end; return its record, whose `status` says how the run ended.

    `suspects` are findings that Azure ML accepts and a job's own program does not: errors where a job that runs here
    has them, notes otherwise.

    Raise `SpecError`, `UsageError` or `RunError` before anything has started when the pipeline, the command line or
    this machine does not allow the run, and `RunError` when the disk fails during it. Ctrl-C and SIGTERM end all
    processes and cancel the run.
    """
    run_folder = options.run_folder or options.runs_folder / (options.name or "run")
    checked = _check(pipeline, options, run_folder, suspects)
    found = _found(checked, options, checked.selection.reused, display)
    name, folder = create_run_folder(
        options.runs_folder, options.run_folder, options.name, name_of_runs(pipeline.name, pipeline.file)
    )
    record = _record(name, folder, checked, options)
    for each in suspects:
        record.notes.append(f"{short(each.span.file)}:{each.span.line}: {each.message} [{each.rule}, not in this run]")
    record.notes += _environment_notes(checked, found.software, folder)
    context = _context(record, checked, options, found)
    return Scheduler(context, record, checked.here, checked.selection, display).run(found.reused)


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
        python=Path(record.python) if record.python else options.python,
        environments=next((known for known in ENVIRONMENT_CHOICES if known == record.environments), "current"),
        **{name: getattr(record, name) for name in _RECORDED},
    )
    checked = _check(pipeline, options, record.folder)
    if set(checked.here.jobs) != set(record.jobs):
        raise UsageError(f"run {record.name} cannot be resumed: {record.pipeline_file} has other jobs now")
    resumed = _record(record.name, record.folder.resolve(), checked, options)
    resumed.id, resumed.started = record.id, record.started
    for name, job in record.jobs.items():
        if job.status == "completed":
            resumed.jobs[name] = job
        resumed.jobs[name].attempts = job.attempts
    not_linked_yet = {name for name in checked.selection.reused if record.jobs[name].status != "completed"}
    found = _found(checked, options, not_linked_yet, display)
    context = _context(resumed, checked, options, found)
    spent = record.duration_s or 0.0
    return Scheduler(context, resumed, checked.here, checked.selection, display, seconds_spent=spent).run(found.reused)


def _check(
    pipeline: Pipeline, options: RunOptions, run_folder: Path, suspects: Sequence[Diagnostic] = ()
) -> _CheckedPipeline:
    """Check all that can be checked before a process starts; `run_folder` is that of the run, or a stand-in."""
    resolution = resolve_with(pipeline, options.overrides, strict=options.strict)
    selection = select(resolution.waits_for, only=options.only, from_job=options.from_job)
    local_python_digest(options.python)  # a Python that does not start is an error of the whole run
    here = local_pipeline(
        pipeline,
        resolution,
        kept=options.kept,
        selected=selection.run,
        max_processes=options.max_processes,
        gpus=len(options.gpus),
    )
    faults = faults_of(options.preempt, options.kill, here.jobs, selection.run)
    checked = _CheckedPipeline(here, selection, faults)
    refused = [error for job in checked.jobs_to_run for error in _refused_by_program(job, suspects)]
    if refused:
        raise SpecError(refused)
    if options.environments == "current":
        require_packages_of_steps(checked.jobs_to_run, options.python)
    jobs_folder = folder_for_jobs(run_folder.resolve()) / "jobs"
    for job in checked.jobs_to_run:
        _refuse_without_programs(job, options)
        component, task, drawn = job.component, job.component.task, dict[str, ParameterValue]()
        if isinstance(task, Sweep):
            component, drawn = trial_component(component, task), trials(task)[0]
        fill_command(
            component,
            {port: _planned(source, jobs_folder, job.name, port) for port, source in job.inputs.items()} | drawn,
            {port: _planned_output(jobs_folder, job.name, port) for port in job.component.outputs},
            strict=options.strict,
        )
        _ = job.snapshot  # raises for code that is missing
    return checked


def _refused_by_program(job: LocalJob, suspects: Sequence[Diagnostic]) -> Iterator[Diagnostic]:
    """Yield what the job's own program would refuse: its settings with `--set` and the processes here, and its flags.

    A flag is in the command; the value of one is there too, or what an input of the job comes to.
    """
    counts = job.counts
    shared_by = (counts.nodes, counts.processes_per_node)
    processes = (counts.training_processes,) if isinstance(job.distribution, TensorFlow) else shared_by
    for error in refused_settings(job.use, processes=processes):
        if error.rule in REFUSED_BY_STEPS:
            fewer = f" {job.scaling}." if job.scaling and error.rule == BATCH_DOES_NOT_DIVIDE.id else ""
            yield error._replace(hint=error.hint + fewer)
    read = [job.component.command, *(value.written for value in job.use.inputs.values() if isinstance(value, Known))]
    for suspect in suspects:
        if suspect.rule not in REFUSED_BY_STEPS and any(value.span.contains(suspect.span) for value in read):
            yield suspect


def _refuse_without_programs(job: LocalJob, options: RunOptions) -> None:
    """Raise `SpecError` or `UsageError` for a job whose processes a program starts that is not here."""
    if job.distribution is not None and options.environments != "docker":
        local_distribution(job.distribution).check(job.name, job.distribution, options.python)
    path = job_path(options.python, os.environ.get("PATH"))
    if not isinstance(job.component.task, Spark):
        return
    if shutil.which("spark-submit", path=path) is None:
        raise error_at(
            job.use.job.key_span,
            f"job {job.name!r}: a Spark job needs spark-submit, which {options.python} does not have",
            "install pyspark for it (here `make setup-spark`), and Java, or name another with --python PATH",
        )
    if shutil.which("java", path=path) is None and "JAVA_HOME" not in os.environ:
        raise error_at(
            job.use.job.key_span,
            f"job {job.name!r}: a Spark job needs Java, and there is no java on the PATH, nor JAVA_HOME",
            "install it, on Debian and Ubuntu with `apt-get install default-jre-headless`",
        )


def _planned(source: Source, jobs_folder: Path, job: str, port: str) -> ParameterValue | Path:
    if isinstance(source, JobOutput):
        return place_of_input(jobs_folder / job / "data", port, _planned_output(jobs_folder, source.job, source.port))
    if isinstance(source, WrittenValue):
        return f"<{source.output.job}.{source.output.port}>"
    return place_of_input(jobs_folder / job / "data", port, source.path) if isinstance(source, LocalPath) else source


def _planned_output(jobs_folder: Path, job: str, port: str) -> Path:
    return jobs_folder / job / "outputs" / port


def _record(run: str, folder: Path, checked: _CheckedPipeline, options: RunOptions) -> RunRecord:
    record = new_record(run, folder, checked.here)
    record.overrides = with_absolute_paths(checked.here.pipeline, options.overrides)
    record.python, record.environments = str(options.python), options.environments
    for name in _RECORDED:
        setattr(record, name, getattr(options, name))
    if options.without_gpus:
        record.notes.append("--without-gpus: the CPU stands in for GPUs in PyTorch, and gloo for NCCL")
    return record


def _found(checked: _CheckedPipeline, options: RunOptions, reused: Collection[str], display: Display) -> _Found:
    """Find the results of these jobs, and what jobs run in; build or pull that where it is not on this machine yet."""
    cancellation = Cancellation()
    digests = ContentDigests(options.state_folder / "cache" / "file_digests.json", display.note, cancellation)
    earlier = list_runs(options.runs_folder) if reused else []
    results = find_reused(checked.here, reused, earlier, digests, without_gpus=options.without_gpus)
    software = Software(options.python)
    jobs, folder = checked.jobs_to_run, options.state_folder / "cache" / "environments"
    if options.environments == "venv":
        from trainyard.rehearse.virtual_environments import build_environments  # packaging takes 30 ms to import

        software = Software(options.python, build_environments(jobs, folder, options.python, display.note))
    elif options.environments == "docker":
        from trainyard.rehearse.container_images import find_engine, images_of

        images = images_of(jobs, find_engine(os.environ), folder, options.state_folder, digests, display.note)
        software = Software(options.python, images=images)
    return _Found(results, software, digests, cancellation)


def _environment_notes(checked: _CheckedPipeline, software: Software, run_folder: Path) -> list[str]:
    """What to say of jobs that run in a Python here: what they install, what it lacks, what only this machine has."""
    own = software.pythons.keys() | software.images.keys()
    jobs = [job for job in checked.jobs_to_run if job.name not in own]
    notes = [
        f"{job.name}: its command installs packages into {software.python}, which keeps them; --python PATH is another"
        for job in jobs
        if _PIP_INSTALL.search(job.component.command.data)
    ]
    for job in checked.jobs_to_run:
        if job.name not in software.images:
            notes += outside_notes(job, software.python_of(job.name))
    environments = [job.component.environment for job in jobs]
    if not any(environment is not None and environment.package_source for environment in environments):
        return notes
    from trainyard.rehearse.environment_packages import environment_notes  # packaging takes 30 ms to import

    return notes + environment_notes(jobs, software.python, run_folder)


def _context(record: RunRecord, checked: _CheckedPipeline, options: RunOptions, found: _Found) -> RunContext:
    store = TrackingStore(options.state_folder / "mlruns")
    identity = store.identity(record.experiment, record.id)
    seen_folder = folder_for_jobs(record.folder)
    return RunContext(
        name=record.name,
        folder=record.folder,
        seen_folder=seen_folder,
        pipeline=checked.here.pipeline,
        identity=identity,
        options=options,
        software=found.software,
        cache=StepCache(options.state_folder / "cache"),
        digests=found.digests,
        named_job=checked.selection.named,
        faults=checked.faults,
        store=store,
        cancellation=found.cancellation,
        guardian=Guardian(seen_folder, _containers_of(found.software, identity)),
    )


def _containers_of(software: Software, identity: RunIdentity) -> tuple[str, str] | None:
    """The program that ends this run's containers, and their label; None for a run without containers."""
    if not software.images:
        return None
    from trainyard.rehearse.containers import run_label

    return next(iter(software.images.values())).engine.program, run_label(identity)
