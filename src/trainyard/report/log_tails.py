"""The last lines of every rank's log, as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.log_text import last_lines
from trainyard.settings.run_record import RunRecord

_LINES, _LINE_CHARACTERS = 30, 300
_MOST_LOGS = 64
"""Of a run with more logs, those of the jobs that did not complete come first; the others are linked only."""


@dataclass(frozen=True)
class LogTail:
    """A log's path beneath the run folder, a title, and its last lines."""

    path: str
    title: str
    lines: tuple[str, ...]


def log_tails(run: RunRecord, run_folder: Path, *, with_lines: bool) -> dict[str, list[LogTail]]:
    """Return the logs by job: the last lines of at most 64, or all without lines, for a page that fills them in."""
    jobs = sorted(run.jobs.values(), key=lambda job: job.status == "completed")
    tails: dict[str, list[LogTail]] = {}
    left = _MOST_LOGS if with_lines else sum(len(job.logs) for job in jobs)
    for job in jobs:
        shown = job.logs[:left]
        files = job.log_files(run_folder) if with_lines else {}
        left -= len(shown)
        tails[job.name] = [
            LogTail(
                path,
                f"Log of rank {rank}" if len(job.logs) > 1 else "Log",
                tuple(line[:_LINE_CHARACTERS] for line in last_lines(files[path], _LINES)) if path in files else (),
            )
            for rank, path in enumerate(shown)
        ]
    return tails
