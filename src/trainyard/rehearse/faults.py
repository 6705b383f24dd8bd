"""Faults on purpose: `--preempt` and `--kill`, which jobs they hit and when, and what each of them cost."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainyard.rehearse.errors import UsageError
from trainyard.rehearse.kinds.sampling import trials
from trainyard.rehearse.resolution import ResolvedJob
from trainyard.rehearse.steps_seen import StepsSeen
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.model import Sweep

if TYPE_CHECKING:
    from trainyard.rehearse.metadata_service import MetadataService  # its server takes 20 ms to import

_WHEN = re.compile(r"step:(?P<step>\d+)|(?P<seconds>\d+(?:\.\d+)?)s|random:(?P<count>[1-9]\d*)")
_TARGET = re.compile(r"(?P<job>.+?)(?::trial(?P<trial>\d+))?(?::rank(?P<rank>\d+))?")
_PREEMPT_FORM = "expected JOB@step:N, JOB@SECONDSs or JOB@random:COUNT, as in train@step:50, train@30s, train@random:5"
_KILL_FORM = "expected JOB:rankN@step:N or JOB:rankN@SECONDSs, as in train:rank1@step:50, train:rank1@20s"
# When a job that reports no steps is preempted at random: within this many seconds of an attempt.
_RANDOM_SECONDS = (1.0, 20.0)


@dataclass(frozen=True)
class Fault:
    """One preemption of a job's machines, or with a `rank` one crash of that process; `option` is what asked for it.

    `trial` is the number of the trial that it hits, where the job is a sweep.
    It is due at a step, after seconds of an attempt, or at a share 0…1 of the job's steps; an attempt that has not yet
    reported how many it takes is hit after the seconds.
    """

    option: str
    job: str
    trial: int | None = None
    rank: int | None = None
    step: int | None = None
    seconds: float | None = None
    share: float | None = None

    def is_due(self, seen: StepsSeen, seconds: float) -> bool:
        """Return whether to strike, by the steps of the attempt and its age in seconds."""
        if self.step is not None:
            return seen.last is not None and seen.last >= self.step
        if self.share is not None and seen.share is not None:
            return seen.share >= self.share
        return self.seconds is not None and seconds >= self.seconds


def faults_of(
    preempt: Sequence[str], kill: Sequence[str], jobs: Mapping[str, ResolvedJob], selected: Collection[str]
) -> dict[str, list[Fault]]:
    """Return the faults of each job as the options ask for them, `random` ones drawn.

    Raise `UsageError` for an option of another form, an unknown job or rank, and a job that cannot be hit.
    """
    found: dict[str, list[Fault]] = {}
    for text in preempt:
        whom, _, when = text.rpartition("@")
        target, timing = _TARGET.fullmatch(whom), _WHEN.fullmatch(when)
        if target is None or target["rank"] or timing is None:
            raise UsageError(f"--preempt {text}: {_PREEMPT_FORM}")
        hit = _checked(f"--preempt {text}", target, jobs, selected)
        found.setdefault(hit.job, []).extend(_preemptions(hit, timing))
    for text in kill:
        whom, _, when = text.rpartition("@")
        target, timing = _TARGET.fullmatch(whom), _WHEN.fullmatch(when)
        if target is None or not target["rank"] or timing is None or timing["count"]:
            raise UsageError(f"--kill {text}: {_KILL_FORM}")
        hit = _checked(f"--kill {text}", target, jobs, selected)
        job, rank, ranks = hit.job, int(target["rank"]), jobs[hit.job].processes
        if rank >= ranks:
            known = f"its ranks are 0 to {ranks - 1}" if ranks > 1 else "its only rank is 0"
            raise UsageError(f"--kill {text}: {job!r} has no rank {rank}; {known}")
        found.setdefault(job, []).append(_at(replace(hit, rank=rank), timing))
    return found


def _checked(option: str, target: re.Match[str], jobs: Mapping[str, ResolvedJob], selected: Collection[str]) -> Fault:
    """What an option names, without the time; raise `UsageError` for what is not there or cannot be hit."""
    job, trial = target["job"], int(target["trial"]) if target["trial"] else None
    if job not in jobs:
        raise UsageError(f"{option}: unknown job {job!r}. {did_you_mean(job, jobs)}")
    if job not in selected:
        raise UsageError(f"{option}: --only or --from leaves {job!r} out of this run")
    task = jobs[job].component.task
    if isinstance(task, Sweep):
        count = len(trials(task))
        if trial is None:
            raise UsageError(f"{option}: {job!r} is a sweep; name one of its trials, as in {job}:trial0")
        if trial >= count:
            raise UsageError(f"{option}: {job!r} has no trial {trial}; its trials are 0 to {count - 1}")
    elif trial is not None:
        raise UsageError(f"{option}: {job!r} is not a sweep, and has no trials")
    return Fault(option, job, trial)


def _at(hit: Fault, timing: re.Match[str]) -> Fault:
    seconds = float(timing["seconds"]) if timing["seconds"] else None
    return replace(hit, step=int(timing["step"]) if timing["step"] else None, seconds=seconds)


def _preemptions(hit: Fault, timing: re.Match[str]) -> Iterator[Fault]:
    if not timing["count"]:
        yield _at(hit, timing)
        return
    chance = random.SystemRandom()
    for share in sorted(chance.uniform(0.05, 0.95) for _ in range(int(timing["count"]))):
        yield replace(hit, seconds=chance.uniform(*_RANDOM_SECONDS), share=share)


@dataclass(frozen=True)
class AttemptProgress:
    """How far an attempt came, and what it cost to start again.

    `repeated_steps` are those that earlier attempts had taken already, as far as they were reported; `lost_s` are the
    seconds from the fault until the attempt was where the earlier one had been. Both are None if unknown.
    """

    last_step: int | None
    repeated_steps: int | None
    lost_s: float | None


class FaultWatch:
    """The faults of one job over its attempts: which is due, and what each attempt had to repeat.

    `notice_seconds` are those between the notice and the end of the machine.
    """

    def __init__(self, faults: Sequence[Fault], notice_seconds: float) -> None:
        self.pending = list(faults)
        self.notice_seconds = notice_seconds
        self._furthest: tuple[int, float] | None = None
        """The last step of all attempts, and the moment that its attempt was hit."""

    @contextmanager
    def of_trial(self, number: int) -> Iterator[FaultWatch | None]:
        """Yield the watch of a sweep's trial, None if it is not hit; what struck it is no longer pending here after."""
        own = [fault for fault in self.pending if fault.trial == number]
        watch = FaultWatch(own, self.notice_seconds) if own else None
        yield watch
        for fault in own:
            if watch is not None and fault not in watch.pending:
                self.pending.remove(fault)

    def begin(self, seen: StepsSeen, service: MetadataService) -> None:
        """Begin to watch an attempt."""
        self._seen, self._service = seen, service
        self._started = time.monotonic()
        self._lost_seconds: float | None = None
        self._hit: float | None = None

    def due(self) -> Fault | None:
        """Return a fault to strike with now, each one once."""
        self._look()
        age = time.monotonic() - self._started
        fault = next((each for each in self.pending if each.is_due(self._seen, age)), None)
        if fault is not None:
            self.pending.remove(fault)
            self._hit = time.monotonic()
        return fault

    def announce(self) -> None:
        """Let the metadata service announce the end of the machine."""
        self._service.announce_preemption(self.notice_seconds)

    def end(self) -> AttemptProgress:
        """End the attempt; return how far it came."""
        self._look()
        seen, repeated = self._seen, None
        if self._furthest is not None and seen.done_before is not None and seen.last is not None:
            repeated = max(0, min(self._furthest[0], seen.last) - seen.done_before)
        if seen.last is not None and (self._furthest is None or seen.last >= self._furthest[0]):
            self._furthest = (seen.last, self._hit or time.monotonic())
        return AttemptProgress(seen.last, repeated, self._lost_seconds)

    def _look(self) -> None:
        self._seen.look()
        last = self._seen.last
        if self._lost_seconds is None and self._furthest is not None and last is not None and last >= self._furthest[0]:
            self._lost_seconds = round(time.monotonic() - self._furthest[1], 3)
