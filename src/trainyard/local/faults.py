"""Faults on purpose: `--preempt` and `--kill`, which jobs they hit and when, and what each of them cost."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainyard.foundation.suggestions import did_you_mean
from trainyard.local.errors import UsageError
from trainyard.local.resolution import ResolvedJob
from trainyard.local.steps_seen import StepsSeen
from trainyard.spec.model import Sweep

if TYPE_CHECKING:
    from trainyard.local.metadata_service import MetadataService  # its server takes 20 ms to import

_WHEN = re.compile(r"step:(?P<step>\d+)|(?P<seconds>\d+(?:\.\d+)?)s|random:(?P<count>[1-9]\d*)")
_JOB_AND_RANK = re.compile(r"(?P<job>.+):rank(?P<rank>\d+)")
_PREEMPT_FORM = "expected JOB@step:N, JOB@SECONDSs or JOB@random:COUNT, as in train@step:50, train@30s, train@random:5"
_KILL_FORM = "expected JOB:rankN@step:N or JOB:rankN@SECONDSs, as in train:rank1@step:50, train:rank1@20s"
# When a job that reports no steps is preempted at random: within this many seconds of an attempt.
_RANDOM_SECONDS = (1.0, 20.0)


@dataclass(frozen=True)
class Fault:
    """One preemption of a job's machines, or with a `rank` one crash of that process; `option` is what asked for it.

    It is due at a step, after seconds of an attempt, or at a share 0…1 of the job's steps; an attempt that has not yet
    reported how many it takes is hit after the seconds.
    """

    option: str
    job: str
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
        job, _, when = text.rpartition("@")
        timing = _WHEN.fullmatch(when)
        if not job or timing is None:
            raise UsageError(f"--preempt {text}: {_PREEMPT_FORM}")
        _require_job(f"--preempt {text}", job, jobs, selected)
        found.setdefault(job, []).extend(_preemptions(f"--preempt {text}", job, timing))
    for text in kill:
        whom, _, when = text.rpartition("@")
        process, timing = _JOB_AND_RANK.fullmatch(whom), _WHEN.fullmatch(when)
        if process is None or timing is None or timing["count"]:
            raise UsageError(f"--kill {text}: {_KILL_FORM}")
        job, rank = process["job"], int(process["rank"])
        _require_job(f"--kill {text}", job, jobs, selected)
        ranks = jobs[job].processes
        if rank >= ranks:
            known = f"its ranks are 0 to {ranks - 1}" if ranks > 1 else "its only rank is 0"
            raise UsageError(f"--kill {text}: {job!r} has no rank {rank}; {known}")
        found.setdefault(job, []).append(_at(f"--kill {text}", job, timing, rank))
    return found


def _require_job(option: str, job: str, jobs: Mapping[str, ResolvedJob], selected: Collection[str]) -> None:
    if job not in jobs:
        raise UsageError(f"{option}: unknown job {job!r}. {did_you_mean(job, jobs)}")
    if job not in selected:
        raise UsageError(f"{option}: --only or --from leaves {job!r} out of this run")
    if isinstance(jobs[job].component.task, Sweep):
        raise UsageError(f"{option}: {job!r} is a sweep, whose trials are jobs of their own; name a job without trials")


def _at(option: str, job: str, timing: re.Match[str], rank: int | None = None) -> Fault:
    seconds = float(timing["seconds"]) if timing["seconds"] else None
    return Fault(option, job, rank, step=int(timing["step"]) if timing["step"] else None, seconds=seconds)


def _preemptions(option: str, job: str, timing: re.Match[str]) -> Iterator[Fault]:
    if not timing["count"]:
        yield _at(option, job, timing)
        return
    chance = random.SystemRandom()
    for share in sorted(chance.uniform(0.05, 0.95) for _ in range(int(timing["count"]))):
        yield Fault(option, job, seconds=chance.uniform(*_RANDOM_SECONDS), share=share)


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
