"""When each job's attempts ran, as bars over the time of the run."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.settings.quantities import duration
from trainyard.settings.run_record import JobRecord, RunRecord


@dataclass(frozen=True)
class Bar:
    """One attempt: its start and its length, in per cent of the timeline."""

    start: float
    length: float
    tooltip: str


@dataclass(frozen=True)
class JobBars:
    """One job's bars."""

    job: JobRecord
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Timeline:
    """All jobs that ran, in the order of their start, over `seconds`."""

    rows: tuple[JobBars, ...]
    seconds: float


def draw_timeline(run: RunRecord) -> Timeline | None:
    """Return the timeline of a run, or None if fewer than two jobs have a known start and duration."""
    begun = {
        job.name: [
            (number, started.timestamp(), attempt.duration_s, attempt.reason)
            for number, attempt in enumerate(job.attempts, start=1)
            if (started := attempt.started_at) is not None and attempt.duration_s is not None
        ]
        for job in run.jobs.values()
        if job.reused_from is None
    }
    begun = {name: attempts for name, attempts in begun.items() if attempts}
    if len(begun) < 2:
        return None
    origin = min(start for attempts in begun.values() for _, start, _, _ in attempts)
    end = max(start + seconds for attempts in begun.values() for _, start, seconds, _ in attempts)
    span = max(end - origin, 0.001)
    rows = [
        JobBars(
            run.jobs[name],
            tuple(
                Bar(
                    start=round((start - origin) / span * 100, 3),
                    length=round(seconds / span * 100, 3),
                    tooltip=_tooltip(name, number, len(attempts), start - origin, seconds, reason),
                )
                for number, start, seconds, reason in attempts
            ),
        )
        for name, attempts in begun.items()
    ]
    rows.sort(key=lambda row: row.bars[0].start)
    return Timeline(tuple(rows), span)


def _tooltip(job: str, number: int, attempts: int, after: float, seconds: float, reason: str | None) -> str:
    which = f"{job}, attempt {number} of {attempts}" if attempts > 1 else job
    text = f"{which}: began after {duration(after)}, took {duration(seconds)}"
    return f"{text}; {reason}" if reason else text
