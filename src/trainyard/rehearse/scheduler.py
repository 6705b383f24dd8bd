"""Which job starts when, and what happens to the others when one fails: the run's flow and its record.

The main thread decides and writes the record; each job runs in its own thread and posts events. Jobs run side by side
as long as they have no more processes together than this machine has processors (at least two, so that independent jobs
overlap anywhere); a job with more processes runs alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone

from trainyard.rehearse.attempts import log_name
from trainyard.rehearse.cancellation import canceled_by_signals
from trainyard.rehearse.display import Display
from trainyard.rehearse.errors import RunError
from trainyard.rehearse.job_work import (
    Broken,
    Ended,
    Event,
    Reused,
    RunContext,
    Started,
    TrialsChanged,
    take_over,
    work,
)
from trainyard.rehearse.local_jobs import LocalJob, LocalPipeline
from trainyard.rehearse.machine import seen_at
from trainyard.rehearse.outcome import WarningLines
from trainyard.rehearse.reuse import EarlierResult
from trainyard.rehearse.run_store import hold_lock, now, write_record
from trainyard.rehearse.selection import ReusedResult, Selection
from trainyard.rehearse.tracking_store import EndStatus
from trainyard.settings.run_record import (
    AttemptRecord,
    JobRecord,
    RunRecord,
    RunRecordWriter,
    Status,
)
from trainyard.settings.this_machine import available_processors

_TICK_SECONDS = 0.2
_SECONDS_BETWEEN_WRITES_OF_TRIALS = 0.5
_MOST_WARNINGS = 10
_WITHOUT_RESULT: frozenset[Status] = frozenset({"failed", "canceled", "skipped"})
_END_STATUSES: dict[Status, EndStatus] = {"completed": "FINISHED", "failed": "FAILED", "canceled": "KILLED"}


class Scheduler:
    """One run under way. `seconds_spent` is the time that the run took before it was resumed."""

    def __init__(
        self,
        context: RunContext,
        record: RunRecord,
        pipeline: LocalPipeline,
        selection: Selection,
        display: Display,
        *,
        seconds_spent: float = 0.0,
    ) -> None:
        self._context = context
        self._record = record
        self._writer = RunRecordWriter(record)
        self._jobs = pipeline.jobs
        self._continue_on_failure = pipeline.pipeline.continue_on_step_failure
        self._selection = selection
        self._display = display
        self._events: queue.SimpleQueue[Event | str] = queue.SimpleQueue()
        self._threads: dict[str, threading.Thread] = {}
        self._start_moments: dict[str, float] = {}
        self._attempt_moments: dict[str, float] = {}
        self._warnings: dict[str, WarningLines] = {}
        self._clock_began = datetime.now(timezone.utc) - timedelta(seconds=time.monotonic())
        self._started = time.monotonic() - seconds_spent
        self._has_new_trials, self._next_write_of_trials = False, 0.0
        self._changed: set[str] = set()
        self._next_write = 0.0
        self._process_limit = max(2, available_processors())

    def run(self, reused: Mapping[str, ReusedResult]) -> RunRecord:
        """Run all jobs and return the record. Raise `RunError` when the disk fails during the run."""
        with (
            hold_lock(self._record.folder),
            seen_at(self._context.seen_folder, self._record.folder),
            canceled_by_signals(self._context.cancellation, self._events.put),
            self._nothing_left_running(),
        ):
            self._begin(reused)
            while self._threads or any(job.status == "waiting" for job in self._record.jobs.values()):
                self._start_or_skip_waiting_jobs()
                if self._threads:
                    self._handle_next_event()
            self._close()
        return self._record

    def _begin(self, reused: Mapping[str, ReusedResult]) -> None:
        self._record.status, self._record.reason = "running", None
        write_record(self._writer)
        self._context.store.start_run(self._context.identity, self._record.name)
        self._display.run_started(self._record)
        for name, result in reused.items():
            take_over(self._context, name, result.earlier)
            # What the outputs were made with may differ from what this run would make them with.
            job, made = self._record.jobs[name], result.record
            for fact in ("inputs", "command", "nodes", "processes_per_node", "distribution", "environment", "image"):
                setattr(job, fact, getattr(made, fact))
            job.cache_key, job.key_parts = made.cache_key, made.key_parts
            self._take_over(name, result.earlier, result.why)
        for name in self._jobs:  # in their order
            if name not in self._selection.run | self._selection.reused:
                self._skip(name, "left out by --only or --from")

    def _start_or_skip_waiting_jobs(self) -> None:
        for name, job in self._jobs.items():
            if self._record.jobs[name].status != "waiting" or name in self._threads:
                continue
            reason = self._reason_to_skip(job)
            if reason is not None:
                self._skip(name, reason)
            elif self._is_ready(job):
                self._start(job)

    def _reason_to_skip(self, job: LocalJob) -> str | None:
        if self._context.cancellation.reason is not None:
            return self._context.cancellation.reason
        without = [name for name in job.depends_on if self._record.jobs[name].status in _WITHOUT_RESULT]
        return f"it reads from {without[0]}, which has no result" if without else None

    def _is_ready(self, job: LocalJob) -> bool:
        under_way = sum(self._jobs[name].processes for name in self._threads)
        has_room = under_way == 0 or under_way + job.processes <= self._process_limit
        is_its_turn = all(self._record.jobs[name].status not in ("waiting", "running") for name in job.starts_after)
        return (
            has_room and is_its_turn and all(self._record.jobs[name].status == "completed" for name in job.depends_on)
        )

    def _start(self, job: LocalJob) -> None:
        assert job.name in self._selection.run
        identities = {name: str(self._record.jobs[name].identity) for name in job.depends_on}
        earlier_keys = [attempt.cache_key for attempt in self._record.jobs[job.name].attempts]
        arguments = (self._context, job, identities, earlier_keys, self._events.put)
        self._start_moments[job.name] = self._attempt_moments[job.name] = time.monotonic()
        self._threads[job.name] = threading.Thread(target=work, args=arguments, name=job.name)
        self._threads[job.name].start()

    def _handle_next_event(self) -> None:
        # Events that wait change more, as does a job that was just started: the record is written once for all of them.
        are_more_to_come = not self._events.empty() or any(
            self._record.jobs[name].status == "waiting" for name in self._threads
        )
        if self._changed and (not are_more_to_come or time.monotonic() >= self._next_write):
            self._next_write = time.monotonic() + _TICK_SECONDS
            write_record(self._writer, self._changed)
            self._changed.clear()
        try:
            event = self._events.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            for name in list(self._warnings):
                self._show_warnings(name)
            if self._has_new_trials:
                self._write_trials()
            return
        match event:
            case str():  # what a signal does
                self._display.note(event, always=True)
            case Started():
                self._on_started(event)
            case TrialsChanged():
                self._on_trials_changed(event)
            case Ended() if event.end.was_preempted:
                self._on_preempted(event)
            case Ended():
                self._threads.pop(event.job).join()
                self._on_ended(event)
            case Broken():
                self._threads.pop(event.job).join()
                self._on_broken(event)
            case Reused():
                self._threads.pop(event.job).join()
                job = self._record.jobs[event.job]
                job.cache_key, job.key_parts, job.command = event.key.key, event.key.parts, event.command
                self._take_over(event.job, event.earlier, event.why)
                for text in event.warnings:
                    self._warn(event.job, text)

    def _on_started(self, event: Started) -> None:
        job, attempt = self._record.jobs[event.job], event.attempt
        job.status, job.reuse = "running", event.why
        job.started = job.started or self._as_time(self._start_moments[event.job])
        job.cache_key, job.key_parts, job.identity = event.key.key, event.key.parts, event.identity
        job.tracking = self._tracking_of(event.job)
        job.command = attempt.command
        job.image = str(attempt.image) if attempt.image is not None else None
        job.logs = [log.relative_to(self._context.seen_folder).as_posix() for log in attempt.logs]
        started = self._as_time(self._attempt_moments[event.job])
        job.attempts.append(AttemptRecord(started=started, cache_key=job.cache_key))
        self._warnings[event.job] = event.warnings
        self._keep(event.job)

    def _tracking_of(self, name: str) -> str:
        tracked = self._context.store.folder_of(self._context.identity.of_job(name))
        return os.path.relpath(tracked.resolve(), self._record.folder)

    def _on_trials_changed(self, event: TrialsChanged) -> None:
        """Note the trials; they are written now and then, since a thousand would take longer to write than to run."""
        self._record.jobs[event.job].trials = event.trials
        self._has_new_trials = True
        if time.monotonic() >= self._next_write_of_trials:
            self._write_trials()

    def _write_trials(self) -> None:
        self._has_new_trials = False
        self._next_write_of_trials = time.monotonic() + _SECONDS_BETWEEN_WRITES_OF_TRIALS
        write_record(self._writer)

    def _on_preempted(self, event: Ended) -> None:
        job = self._record.jobs[event.job]
        self._end_attempt(event)
        self._attempt_moments[event.job] = time.monotonic()
        self._changed.add(event.job)
        self._display.attempt_ended(event.job, job)

    def _end_attempt(self, event: Ended) -> None:
        self._show_warnings(event.job)
        attempt, end = self._record.jobs[event.job].attempts[-1], event.end
        attempt.exit_codes = {str(rank): code for rank, code in sorted(end.processes.exit_codes.items())}
        attempt.duration_s = _seconds_since(self._attempt_moments[event.job])
        attempt.reason = end.reason
        if end.progress is not None:
            vars(attempt).update(end.progress._asdict())

    def _show_warnings(self, name: str) -> None:
        """Show what a step warns of, such as a checkpoint that it could not resume from, and keep the first few."""
        job = self._record.jobs[name]
        for text in self._warnings[name].new():
            if text not in job.warnings and len(job.warnings) < _MOST_WARNINGS:
                self._warn(name, text)

    def _warn(self, name: str, text: str) -> None:
        self._record.jobs[name].warnings.append(text)
        self._display.note(f"{name}: warning: {text}")

    def _on_ended(self, event: Ended) -> None:
        job, end = self._record.jobs[event.job], event.end
        self._end_attempt(event)
        del self._warnings[event.job]
        for text in end.warnings:
            self._warn(event.job, text)
        job.reason, job.error_lines, job.failed_rank = end.reason, end.error_lines, end.processes.failed_rank
        status: Status = "completed" if end.reason is None else "failed"
        if end.processes.was_canceled:
            status = "canceled"
        self._note_faults(event)
        self._finish(event.job, job, status)

    def _note_faults(self, event: Ended) -> None:
        """Note what was asked for and did not happen: a rehearsal that did not take place proves nothing."""
        end = event.end
        last_step = end.progress.last_step if end.progress is not None else None
        notes = []
        if end.processes.fault is not None and end.reason is None:
            notes.append(
                f"{event.job}: every process exited with 0 after the notice of {end.processes.fault.option}, so the "
                "job counts as completed, as on Azure ML; exit with another code to be started again"
            )
        ended = f"{event.job} ended before" + (f", at step {last_step}" if last_step is not None else "")
        left = Counter(fault.option for fault in event.not_struck)
        for option, count in left.items():
            times = f" {count} times" if count > 1 else ""
            notes.append(f"{option} did not happen{times}: {ended}")
        self._record.notes += notes
        for note in notes:
            self._display.note(note)

    def _on_broken(self, event: Broken) -> None:
        job = self._record.jobs[event.job]
        self._warnings.pop(event.job, None)
        job.reason = event.reason
        was_canceled = event.reason == self._context.cancellation.reason
        self._finish(event.job, job, "canceled" if was_canceled else "failed")
        if event.error is not None:
            raise event.error

    def _finish(self, name: str, job: JobRecord, status: Status) -> None:
        job.status = status
        job.duration_s = _seconds_since(self._start_moments[name])
        if job.attempts and job.attempts[-1].duration_s is None:
            job.attempts[-1].duration_s, job.attempts[-1].reason = job.duration_s, job.reason
        if status == "failed" and not self._continue_on_failure:
            self._context.cancellation.request(f"job {name} failed")
        self._keep(name)

    def _take_over(self, name: str, earlier: EarlierResult, why: str) -> None:
        job = self._record.jobs[name]
        job.status, job.started, job.duration_s = "completed", now(), 0.0
        job.reused_from, job.reuse, job.identity = earlier.run, why, earlier.identity
        job.trials = earlier.made.trials if earlier.made is not None else []
        job.tracking = self._tracking_of(name)
        logs = [f"jobs/{name}/user_logs/{log_name(rank, job.processes)}" for rank in range(job.processes)]
        job.logs = [log for log in logs if (self._record.folder / log).exists()]
        self._keep(name)

    def _skip(self, name: str, reason: str | None) -> None:
        self._record.jobs[name].status, self._record.jobs[name].reason = "skipped", reason
        self._keep(name)

    def _keep(self, name: str) -> None:
        self._changed.add(name)
        self._display.job_changed(self._record, name)

    def _close(self) -> None:
        record = self._record
        statuses = {job.status for job in record.jobs.values()}
        record.status = "failed" if "failed" in statuses else "completed"
        if record.status != "failed" and self._context.cancellation.reason is not None:
            record.status = "canceled"
        failed = [name for name, job in record.jobs.items() if job.status == "failed"]
        record.reason = self._context.cancellation.reason
        if failed:
            cause = record.jobs[failed[0]].reason if len(failed) == 1 else None
            record.reason = f"{', '.join(failed)} failed" + (f": {cause}" if cause else "")
        record.outputs = {
            port: path for port, path in record.outputs.items() if record.jobs[path.split("/")[1]].status == "completed"
        }
        record.duration_s = _seconds_since(self._started)
        self._context.store.end_run(self._context.identity, _END_STATUSES[record.status])
        self._context.digests.save()
        write_record(self._writer)
        self._display.run_ended(record)

    @contextlib.contextmanager
    def _nothing_left_running(self) -> Iterator[None]:
        """End all jobs before the runner ends, whatever ends it; if the runner is killed, a guardian ends them."""
        try:
            yield
        except BaseException as error:
            self._context.cancellation.request("the runner failed")
            for thread in self._threads.values():
                thread.join()
            self._record.end("failed", str(error))
            self._record.duration_s = _seconds_since(self._started)
            with contextlib.suppress(RunError):  # the error being raised already reports what cannot be written
                write_record(self._writer)
            raise
        finally:
            self._display.close()
            self._context.guardian.dismiss()

    def _as_time(self, moment: float) -> str:
        """The time of a moment of the monotonic clock, so that starts and durations agree when the clock is set."""
        return (self._clock_began + timedelta(seconds=moment)).isoformat()


def _seconds_since(moment: float) -> float:
    """Seconds since a moment, rounded down: rounded up, a job would end after what waits for it has started."""
    return math.floor((time.monotonic() - moment) * 1000) / 1000
