"""Faults on purpose: `--preempt` and `--kill`, which jobs they hit and when."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from trainyard.rehearse.errors import UsageError
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.rehearse.run_store import ranks_in_words
from trainyard.rehearse.search_space import trials
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.model import Sweep

_WHEN = regex(r"step:(?P<step>\d+)|(?P<seconds>\d+(?:\.\d+)?)s|random:(?P<count>[1-9]\d*)")
_TARGET = regex(r"(?P<job>.+?)(?::trial(?P<trial>\d+))?(?::rank(?P<rank>\d+))?")
_PREEMPT_FORM = "expected JOB@step:N, JOB@SECONDSs or JOB@random:COUNT, as in train@step:50, train@30s, train@random:5"
_KILL_FORM = "expected JOB:rankN@step:N or JOB:rankN@SECONDSs, as in train:rank1@step:50, train:rank1@20s"
# When a job that reports no steps is preempted at random: within this many seconds of an attempt.
_RANDOM_SECONDS = (1.0, 20.0)


class Fault(NamedTuple):
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


def faults_of(
    preempt: Sequence[str], kill: Sequence[str], jobs: Mapping[str, LocalJob], selected: Collection[str]
) -> dict[str, list[Fault]]:
    """Return the faults of each job as the options ask for them, `random` ones drawn.

    Raise `UsageError` for an option of another form, an unknown job or rank, and a job that cannot be hit.
    """
    found: dict[str, list[Fault]] = {}
    options = [("--preempt", text, _PREEMPT_FORM) for text in preempt] + [("--kill", text, _KILL_FORM) for text in kill]
    for flag, text, form in options:
        kills, option = flag == "--kill", f"{flag} {text}"
        whom, _, when = text.rpartition("@")
        target, timing = _TARGET.fullmatch(whom), _WHEN.fullmatch(when)
        if target is None or timing is None or kills != bool(target["rank"]) or (kills and timing["count"]):
            raise UsageError(f"{option}: {form}")
        hit = _checked(option, target, jobs, selected)
        found.setdefault(hit.job, []).extend(_timed(hit, timing))
    return found


def _checked(option: str, target: re.Match[str], jobs: Mapping[str, LocalJob], selected: Collection[str]) -> Fault:
    """What an option names, without the time; raise `UsageError` for what is not there or cannot be hit."""
    job = target["job"]
    trial, rank = (int(target[part]) if target[part] else None for part in ("trial", "rank"))
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
    if rank is not None and rank >= jobs[job].processes:
        raise UsageError(f"{option}: {job!r} has no rank {rank}; {ranks_in_words(jobs[job].processes)}")
    return Fault(option, job, trial, rank)


def _timed(hit: Fault, timing: re.Match[str]) -> Iterator[Fault]:
    if timing["step"]:
        yield hit._replace(step=int(timing["step"]))
    elif timing["seconds"]:
        yield hit._replace(seconds=float(timing["seconds"]))
    else:
        chance = random.SystemRandom()
        for share in sorted(chance.uniform(0.05, 0.95) for _ in range(int(timing["count"]))):
            yield hit._replace(seconds=chance.uniform(*_RANDOM_SECONDS), share=share)
