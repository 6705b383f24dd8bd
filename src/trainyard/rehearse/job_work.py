"""One job of a run, in its own thread: reused from an earlier run, or launched. Posts an event for each change."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.rehearse.attempts import Attempt, AttemptEnd, lose_what_a_preemption_takes, make_folders
from trainyard.rehearse.cache import EarlierResult, JobKey, StepCache, job_key, link_or_copy, link_result
from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.digests import ContentDigests
from trainyard.rehearse.errors import RunError, cannot_write
from trainyard.rehearse.faults import Fault, FaultWatch
from trainyard.rehearse.given_inputs import GivenInput
from trainyard.rehearse.guardian import Guardian
from trainyard.rehearse.logs import WarningLines
from trainyard.rehearse.resolution import KeptData, LocalPath, ResolvedJob, WrittenValue
from trainyard.rehearse.snapshot import Snapshot
from trainyard.rehearse.tracking_store import EndStatus, RunIdentity, TrackingStore
from trainyard.spec.diagnostic import Span, SpecError
from trainyard.spec.literals import LiteralError, ParameterValue, typed_literal
from trainyard.spec.model import Port, Sweep, Value
from trainyard.spec.resolved import JobOutput

if TYPE_CHECKING:
    from trainyard.rehearse.containers.images import ContainerImage

_MACRO = re.compile(r"\$\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True)
class RunContext:
    """What all jobs of a run share; `folder` is the run's absolute path."""

    name: str
    identity: RunIdentity
    folder: Path
    pipeline: str
    store: TrackingStore
    cache: StepCache
    kept: KeptData
    digests: ContentDigests
    cancellation: Cancellation
    guardian: Guardian
    grace_seconds: float
    use_cache: bool
    force_rerun: bool
    default_datastore: str
    strict: bool
    python: Path
    pythons: Mapping[str, Path]
    images: Mapping[str, ContainerImage]
    named_job: str | None
    faults: Mapping[str, Sequence[Fault]]
    notice_seconds: float

    def job_folder(self, job: str) -> Path:
        """Return the folder of a job's files."""
        return self.folder / "jobs" / job

    def python_of(self, job: str) -> Path:
        """Return the Python that a job runs with: its own environment's, or that of the run."""
        return self.pythons.get(job, self.python)

    def image_digest_of(self, job: str) -> str | None:
        """Return the digest of the image that a job runs in; None if it runs in no container."""
        return self.images[job].digest if job in self.images else None


@dataclass(frozen=True)
class Reused:
    """The job's outputs were taken from an earlier run."""

    job: str
    earlier: EarlierResult
    key: JobKey
    command: str


@dataclass(frozen=True)
class Started:
    """The job's processes are about to start; `why` says why it was not reused, `warnings` will be in rank 0's log."""

    job: str
    attempt: Attempt
    key: JobKey
    identity: str
    why: str | None
    warnings: WarningLines


@dataclass(frozen=True)
class Preempted:
    """The job's machines were taken away on purpose; another attempt follows."""

    job: str
    end: AttemptEnd


@dataclass(frozen=True)
class Ended:
    """The job's processes have ended; `not_struck` are the faults that it ended too early for."""

    job: str
    end: AttemptEnd
    not_struck: Sequence[Fault] = ()


@dataclass(frozen=True)
class Broken:
    """The job could not be started; `error` is set if the runner itself has a bug."""

    job: str
    reason: str
    error: BaseException | None = None


Event = Reused | Started | Preempted | Ended | Broken


def work(
    context: RunContext,
    job: ResolvedJob,
    snapshot: Snapshot,
    identities: Mapping[str, str],
    earlier_keys: Collection[str | None],
    post: Callable[[Event], None],
) -> None:
    """Run the job to its end and post each event; the last one is Reused, Ended or Broken.

    `earlier_keys` are the cache keys of the job's earlier attempts in this run, one each.
    """
    try:
        python, image = context.python_of(job.name), context.image_digest_of(job.name)
        key = job_key(job, snapshot, identities, context.digests, python, image)
        faults = context.faults.get(job.name)
        watch = FaultWatch(faults, context.notice_seconds) if faults else None
        attempt = _attempt(context, job, snapshot, len(earlier_keys) + 1, watch)
        earlier, why = _earlier_result(context, job, key, attempt.number)
        if earlier is not None:
            link_result(earlier, context.job_folder(job.name))
            context.cache.remember_result(key, earlier.identity, context.folder, context.name, job.name)
            _publish(context, job)
            post(Reused(job.name, earlier, key, attempt.command))
            return
        identity = identity_of(job, key, context.identity.run_id, earlier_keys)
        # Before the event, which writes the record: that must not meet a disk that the copy is filling.
        given = make_folders(attempt)
        post(Started(job.name, attempt, key, identity, why, WarningLines(attempt.logs[0])))
        end = _run(context, attempt, given)
        while end.was_preempted:
            post(Preempted(job.name, end))
            lose_what_a_preemption_takes(attempt)
            attempt = _attempt(context, job, snapshot, attempt.number + 1, watch)
            given = make_folders(attempt)
            post(Started(job.name, attempt, key, identity, "it was preempted", WarningLines(attempt.logs[0])))
            end = _run(context, attempt, given)
        if end.reason is None:
            _publish(context, job)
        if end.reason is None and not end.warnings and identity == key.key:
            context.cache.remember_result(key, identity, context.folder, context.name, job.name)
        post(Ended(job.name, end, watch.pending if watch is not None else ()))
    except (RunError, SpecError) as error:
        post(Broken(job.name, str(error)))
    except BaseException as error:
        post(Broken(job.name, f"internal error: {error!r}", error))


def identity_of(job: ResolvedJob, key: JobKey, run_id: str, earlier_keys: Collection[str | None]) -> str:
    """Return what identifies the job's output: the key alone if the output follows from it, else the run as well.

    It does not follow from the key if the job is not deterministic, or continues from what it wrote under another key.
    """
    follows_from_key = job.component.is_deterministic and all(earlier == key.key for earlier in earlier_keys)
    return key.key if follows_from_key else f"{key.key}@{run_id}"


def _earlier_result(
    context: RunContext, job: ResolvedJob, key: JobKey, attempt_number: int
) -> tuple[EarlierResult | None, str | None]:
    """Return a result to reuse, or why there is none."""
    last_file_name = f"{context.pipeline}.{job.name}"
    rules = (
        (attempt_number > 1, "it is restarted"),
        (context.named_job == job.name, "it was asked for by name"),
        (job.name in context.faults, "it is hit on purpose"),
        (not context.use_cache, "--no-cache"),
        (context.force_rerun, "force_rerun: true"),
        (not job.component.is_deterministic, "is_deterministic: false"),
    )
    why = next((reason for holds, reason in rules if holds), None)
    if why is None:
        earlier, problem = context.cache.find(key, context.folder)
        if earlier is not None:
            return earlier, None
        why = problem or context.cache.why_new(last_file_name, key)
    context.cache.remember_start(last_file_name, key, context.name)
    return None, why


def _run(context: RunContext, attempt: Attempt, given: Sequence[GivenInput]) -> AttemptEnd:
    from trainyard.rehearse.kinds.sweeps import run_sweep  # a run that reuses everything need not import what runs jobs
    from trainyard.rehearse.launcher import launch

    status: EndStatus = "FAILED"
    context.guardian.start()
    context.store.start_run(attempt.run, attempt.job.name)
    try:
        task = attempt.job.component.task
        if isinstance(task, Sweep):
            end = run_sweep(attempt, task, context.store, context.cancellation)
        else:
            end = launch(attempt, given, context.cancellation)
        status = "KILLED" if end.processes.was_canceled else "FINISHED" if end.reason is None else "FAILED"
    finally:
        context.store.end_run(attempt.run, status)
    return end


def _attempt(
    context: RunContext, job: ResolvedJob, snapshot: Snapshot, number: int, faults: FaultWatch | None
) -> Attempt:
    run = context.identity.of_job(job.name)
    return Attempt(
        job=job,
        job_folder=context.job_folder(job.name),
        snapshot=snapshot,
        inputs=_inputs(context, job),
        run=run,
        number=number,
        grace_seconds=context.grace_seconds,
        strict=context.strict,
        python=context.python_of(job.name),
        image=context.images.get(job.name),
        tracked=context.store.folder_of(run),
        faults=faults,
    )


def _publish(context: RunContext, job: ResolvedJob) -> None:
    """Put outputs that have a path in a datastore into the local folder of that datastore, as links or copies."""
    for port, written in job.destinations.items():
        macros = {
            "name": context.identity.of_job(job.name).run_id,
            "output_name": port,
            "default_datastore": context.default_datastore,
        }
        place = context.kept.of_datastore(_filled_in(written, macros))
        source = context.job_folder(job.name) / "outputs" / port
        if place is None or not source.exists():
            continue
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            place.unlink(missing_ok=True)
            if source.is_dir():
                shutil.copytree(source, place, copy_function=link_or_copy)
            else:
                link_or_copy(str(source), str(place))
        except OSError as error:
            raise cannot_write(place, error) from error


def _filled_in(path: str, macros: Mapping[str, str]) -> str:
    return _MACRO.sub(lambda found: macros.get(found[1], found[0]), path)


def _inputs(context: RunContext, job: ResolvedJob) -> dict[str, ParameterValue | Path]:
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
