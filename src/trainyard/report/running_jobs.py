"""What runs right now, for whoever watches the live page: for how long, at which attempt, and what it said last."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from trainyard.settings.log_text import last_lines
from trainyard.settings.run_record import RunRecord

LINE_CHARACTERS = 120
"""What the page shows of a job's last line."""

LONG_SILENCE_SECONDS = 300
"""A job that has said nothing for so long stands out."""


@dataclass(frozen=True)
class RunningJob:
    """A job that runs: when its attempt began, when any of its ranks last said something, and the last line."""

    name: str
    attempt: int
    began: datetime | None
    said_at: datetime | None
    last_line: str
    logs: tuple[str, ...]


def running_jobs(run: RunRecord, run_folder: Path) -> list[RunningJob]:
    """Return the jobs that run, in the order of the pipeline; times are UTC."""
    found = []
    for job in run.jobs.values():
        if job.status != "running":
            continue
        began = job.attempts[-1].started_at if job.attempts else None
        files = job.log_files(run_folder)
        written = {log: file.stat() for log, file in files.items()}
        spoken = {log: status.st_mtime for log, status in written.items() if status.st_size}
        latest = max(spoken, key=lambda log: spoken[log], default=None)
        lines = last_lines(files[latest], 1) if latest else []
        found.append(
            RunningJob(
                job.name,
                max(1, len(job.attempts)),
                began,
                datetime.fromtimestamp(spoken[latest], timezone.utc) if latest else began,
                lines[0][:LINE_CHARACTERS] if lines else "",
                tuple(job.logs),
            )
        )
    return found
