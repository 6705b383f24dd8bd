"""One job of a run, in its own thread: reused from an earlier run, or launched. Posts an event for each change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainyard.rehearse.attempts import (
    Attempt,
    AttemptEnd,
    GivenInput,
    lose_what_a_preemption_takes,
    make_folders,
)
from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.digests import ContentDigests, digest_of
from trainyard.rehearse.errors import RunError, writing
from trainyard.rehearse.faults import Fault
from trainyard.rehearse.guardian import Guardian
from trainyard.rehearse.launcher import launch
from trainyard.rehearse.local_data import LocalPath
from trainyard.rehearse.local_jobs import LocalJob, WrittenValue
from trainyard.rehearse.outcome import WarningLines, empty_outputs
from trainyard.rehearse.reuse import EarlierResult, JobKey, StepCache, job_key, link_or_copy, link_result
from trainyard.rehearse.sweeps import run_sweep
from trainyard.rehearse.tracking_store import EndStatus, RunIdentity, TrackingStore
from trainyard.settings.regex import regex
from trainyard.settings.run_record import NOTHING_CHANGED, TrialRecord
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.documents import Value
from trainyard.spec.literals import LiteralError, ParameterValue, typed_literal
from trainyard.spec.model import Pipeline, Port, Sweep
from trainyard.spec.resolved import JobOutput

if TYPE_CHECKING:
    from trainyard.rehearse.container_images import ContainerImage
    from trainyard.rehearse.run_options import RunOptions

# Every workspace has it, as its default.
_DEFAULT_DATASTORE = "workspaceblobstore"
# https://learn.microsoft.com/azure/machine-learning/resource-limits-capacity
_MOST_METRICS = 50
_MACRO = regex(r"\$\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class Software:
    """What jobs run in: a Python, or by the job's name a Python of their own, or an image."""

    python: Path
    pythons: Mapping[str, Path] = field(default_factory=dict)
    images: Mapping[str, ContainerImage] = field(default_factory=dict)

    def python_of(self, job: str) -> Path:
        """Return the Python that a job runs with."""
        return self.pythons.get(job, self.python)


class RunContext(NamedTuple):
    """What all jobs of a run share; `folder` is the run's absolute path, `faults` are those of each job.

    `seen_folder` is the same folder under the path that jobs see. `named_job` is the one that the user named: it is
    not reused.
    """

    name: str
    folder: Path
    seen_folder: Path
    pipeline: Pipeline
    identity: RunIdentity
    options: RunOptions
    software: Software
    cache: StepCache
    digests: ContentDigests
    named_job: str | None
    faults: Mapping[str, Sequence[Fault]]
    store: TrackingStore
    cancellation: Cancellation
    guardian: Guardian

    def job_folder(self, job: str) -> Path:
        """Return the folder of a job's files, as the job sees it."""
        return self.seen_folder / "jobs" / job


class Reused(NamedTuple):
    """The job's outputs were taken from an earlier run, where they have this key; `why` says what differs, if any."""

    job: str
    earlier: EarlierResult
    key: JobKey
    command: str
    why: str
    warnings: tuple[str, ...] = ()


class Started(NamedTuple):
    """The job's processes are about to start; `why` says why it was not reused, `warnings` will be in rank 0's log."""

    job: str
    attempt: Attempt
    key: JobKey
    identity: str
    why: str | None
    warnings: WarningLines


class Ended(NamedTuple):
    """An attempt has ended; another follows if it was preempted. `not_struck` are the faults that came too late."""

    job: str
    end: AttemptEnd
    not_struck: Sequence[Fault] = ()


class Broken(NamedTuple):
    """The job could not be started; `error` is set if the runner itself has a bug."""

    job: str
    reason: str
    error: BaseException | None = None


class TrialsChanged(NamedTuple):
    """A trial of a sweep has started or ended; `trials` are all of them, and the same list each time."""

    job: str
    trials: list[TrialRecord]


Event = Reused | Started | TrialsChanged | Ended | Broken


def work(
    context: RunContext,
    job: LocalJob,
    identities: Mapping[str, str],
    earlier_keys: Collection[str | None],
    post: Callable[[Event], None],
) -> None:
    """Run the job to its end and post each event; the last one is Reused, Ended or Broken.

    `earlier_keys` are the cache keys of the job's earlier attempts in this run, one each.
    """
    try:
        cache, image = context.cache, context.software.images.get(job.name)
        digest = image.digest if image is not None else None
        python, without_gpus = context.software.python_of(job.name), context.options.without_gpus
        key = job_key(job, identities, context.digests, python, digest, without_gpus=without_gpus)
        attempt = _first_attempt(context, job, len(earlier_keys) + 1)
        why = _reason_to_run(context, job, is_restarted=bool(earlier_keys))
        # Another file may have a pipeline of this name, whose runs say nothing about this one.
        file = digest_of(str(context.pipeline.file.resolve()))[:12]
        start, digests = f"{context.pipeline.name}.{job.name}.{file}", context.digests
        earlier, problem = cache.find(key, context.folder) if why is None else (None, None)
        reused = Reused(job.name, earlier, key, attempt.command, NOTHING_CHANGED) if earlier is not None else None
        if reused is None and why is None and context.options.reuse_imports:
            found = cache.find_by_imports(start, key, job, digests, context.folder)
            if found is not None:
                earlier, earlier_key, differs = found
                taken = f"taken from run {earlier.run}, with --reuse-imports: {differs}"
                reused = Reused(job.name, earlier, earlier_key, attempt.command, taken)
        if reused is not None:
            take_over(context, job.name, reused.earlier)
            cache.remember_result(reused.key, reused.earlier.identity, context.folder, context.name, job.name)
            _publish(context, job)
            post(reused._replace(warnings=tuple(empty_outputs(attempt))))
            return
        why = why or problem or cache.why_new(start, key, job, digests)
        cache.remember_start(start, key, context.name, job, digests)
        # The output follows from the key alone, unless the job continues from what it wrote under another one.
        follows_from_key = job.component.is_deterministic and all(earlier == key.key for earlier in earlier_keys)
        identity = key.key if follows_from_key else f"{key.key}@{context.identity.run_id}"
        while True:
            # Before the event, which writes the record: that must not meet a disk that the copy is filling.
            given = make_folders(attempt, context.cancellation)
            post(Started(job.name, attempt, key, identity, why, WarningLines(attempt.logs[0])))
            end = _run(context, attempt, given, post)
            if not end.was_preempted:
                break
            post(Ended(job.name, end))
            lose_what_a_preemption_takes(attempt)
            attempt, why = attempt._replace(number=attempt.number + 1), "it was preempted"
        if end.reason is None:
            _publish(context, job)
            if not end.warnings and identity == key.key:
                cache.remember_result(key, identity, context.folder, context.name, job.name)
            end = end._replace(warnings=(*end.warnings, *empty_outputs(attempt)))
        metrics = sum(file.is_file() for file in (attempt.tracked / "metrics").rglob("*"))
        if metrics > _MOST_METRICS:
            warning = f"it logged {metrics} metrics with MLflow; a run on Azure ML takes at most {_MOST_METRICS}"
            end = end._replace(warnings=(*end.warnings, warning))
        post(Ended(job.name, end, attempt.faults.pending if attempt.faults is not None else ()))
    except (RunError, SpecError) as error:
        post(Broken(job.name, str(error)))
    except BaseException as error:
        post(Broken(job.name, f"internal error: {error!r}", error))


def take_over(context: RunContext, job: str, earlier: EarlierResult) -> None:
    """Put an earlier job's outputs and logs into a job's folder, and what it logged with MLflow into a run of its own.

    Raise `RunError` when these cannot be written.
    """
    link_result(earlier, context.job_folder(job))
    tracked = earlier.made.tracked_folder(earlier.run_folder) if earlier.made is not None else None
    if tracked is not None:
        context.store.take_over(tracked, context.identity.of_job(job), job)


def _reason_to_run(context: RunContext, job: LocalJob, *, is_restarted: bool) -> str | None:
    """Why a job runs even if nothing has changed; None if it need not."""
    reasons = {
        "it is restarted": is_restarted,
        "it was asked for by name": job.name == context.named_job,
        "this run interrupts it on purpose": job.name in context.faults,
        "--no-cache": not context.options.use_cache,
        "force_rerun: true": context.pipeline.force_rerun,
        "is_deterministic: false": not job.component.is_deterministic,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _run(
    context: RunContext, attempt: Attempt, given: Sequence[GivenInput], post: Callable[[Event], None]
) -> AttemptEnd:
    status: EndStatus = "FAILED"
    context.guardian.start()
    context.store.start_run(attempt.run, attempt.job.name)
    try:
        task = attempt.job.component.task
        if isinstance(task, Sweep):
            end = run_sweep(
                attempt,
                task,
                context.store,
                context.cancellation,
                lambda trials: post(TrialsChanged(attempt.job.name, trials)),
            )
        else:
            end = launch(attempt, given, context.cancellation)
        if end.processes.was_canceled:
            status = "KILLED"
        elif end.reason is None:
            status = "FINISHED"
    finally:
        context.store.end_run(attempt.run, status)
    return end


def _first_attempt(context: RunContext, job: LocalJob, number: int) -> Attempt:
    run, watch = context.identity.of_job(job.name), None
    if job.name in context.faults:
        from trainyard.rehearse.fault_watch import FaultWatch  # its server takes 20 ms to import

        watch = FaultWatch(context.faults[job.name], context.options.notice_seconds)
    return Attempt(
        job=job,
        job_folder=context.job_folder(job.name),
        inputs=_inputs(context, job),
        run=run,
        number=number,
        grace_seconds=context.options.grace_seconds,
        strict=context.options.strict,
        python=context.software.python_of(job.name),
        image=context.software.images.get(job.name),
        gpus=context.options.gpus,
        tracked=context.store.folder_of(run),
        faults=watch,
        without_gpus=context.options.without_gpus,
    )


def _publish(context: RunContext, job: LocalJob) -> None:
    """Put outputs that have a path in a datastore into the local folder of that datastore, as links or copies."""
    for port, written in job.destinations.items():
        macros = {
            "name": context.identity.of_job(job.name).run_id,
            "output_name": port,
            "default_datastore": context.pipeline.default_datastore.removeprefix("azureml:") or _DEFAULT_DATASTORE,
        }
        place = context.options.kept.of_datastore(_filled_in(written, macros))
        source = context.job_folder(job.name) / "outputs" / port
        if place is None or not source.exists():
            continue
        with writing(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            place.unlink(missing_ok=True)
            if source.is_dir():
                shutil.copytree(source, place, copy_function=link_or_copy)
            else:
                link_or_copy(str(source), str(place))


def _inputs(context: RunContext, job: LocalJob) -> dict[str, ParameterValue | Path]:
    inputs: dict[str, ParameterValue | Path] = {}
    for name, source in job.inputs.items():
        if isinstance(source, JobOutput):
            inputs[name] = context.job_folder(source.job) / "outputs" / source.port
        elif isinstance(source, WrittenValue):
            inputs[name] = _read_value(context, name, source)
        elif isinstance(source, LocalPath):
            inputs[name] = source.path
        else:
            inputs[name] = source
    return inputs


def _read_value(context: RunContext, name: str, source: WrittenValue) -> ParameterValue:
    """The literal that a job wrote into an output; RunError if it did not, or if that is not of the input's type."""
    file = context.job_folder(source.output.job) / "outputs" / source.output.port
    try:
        text = file.read_text(encoding="utf-8").strip()
        span = Span(file)
        return typed_literal(Value(text, span, text), Port(name, source.type, span, span))
    except (OSError, UnicodeDecodeError, LiteralError) as error:
        raise RunError(f"{file}: cannot be read as the {source.type} {name!r}: {error}") from error


def _filled_in(path: str, macros: Mapping[str, str]) -> str:
    return _MACRO.sub(lambda found: macros.get(found[1], found[0]), path)
