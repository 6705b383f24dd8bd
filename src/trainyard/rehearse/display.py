"""What users see while a pipeline runs: a live table on a terminal, plain lines elsewhere, or only failures."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from trainyard.printing import last_lines, shortened
from trainyard.settings.quantities import duration
from trainyard.settings.run_record import NOTHING_CHANGED, JobRecord, RunRecord, trials_in_words

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

# `step 60/240`, and `wrote 1,200 of 4,000 train images`.
_COUNTS = re.compile(r"\bstep (?P<step>\d+)/(?P<steps>\d+)\b|\b(?P<done>\d[\d,]*) of (?P<all>\d[\d,]*)\b")


def share_done(line: str) -> float | None:
    """Return the share 0…1 that a line of a log states, or None."""
    found = _COUNTS.search(line)
    if found is None:
        return None
    done, total = (int(text.replace(",", "")) for text in found.groups() if text is not None)
    return done / total if 0 <= done <= total and total > 0 else None


class TimeLeft:
    """Estimates the seconds left from how a job's share grew since it was first seen: a resumed one starts late."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, float]] = {}

    def estimate(self, job: str, share: float, elapsed_s: float) -> float | None:
        """Return the seconds left, or None before there is a second share to compare with."""
        first_share, first_elapsed_s = self._first.setdefault(job, (share, elapsed_s))
        if share < first_share:  # a new attempt, or the next phase
            self._first[job] = (share, elapsed_s)
            return None
        if share == first_share or elapsed_s <= first_elapsed_s:
            return None
        return (1 - share) * (elapsed_s - first_elapsed_s) / (share - first_share)


def in_words(share: float, seconds_left: float | None) -> str:
    """Return `25 %, 1 min 05 s left`, short enough for a column."""
    done = f"{int(share * 100)} %"
    return done if seconds_left is None else f"{done}, {duration(max(1.0, round(seconds_left)))} left"


_REFRESHES_PER_SECOND = 4
_WIDE = 100
_LINES_BESIDE_JOBS = 3
"""The table's headings, what it leaves out, and the line of the cursor."""
_OF_MOST_INTEREST = ("running", "failed", "canceled")
_COLOURS = {
    "completed": "green",
    "reused": "green",
    "taken": "green",
    "failed": "red",
    "canceled": "yellow",
    "running": "cyan",
    "skipped": "dim",
    "waiting": "dim",
}


class Display:
    """Shows a run's progress on a stream, by default standard error.

    `live` redraws a table, for terminals; otherwise each change of a job is one line. `quiet` shows only failures.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None, live: bool | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._is_live = (is_terminal if live is None else live) and not quiet
        self._record: RunRecord | None = None
        self._live: Live | None = None
        self._stays = False
        self._time_left = TimeLeft()

    def run_started(self, record: RunRecord) -> None:
        """Show that a run begins."""
        self._record = record
        if self._is_live:
            from rich.console import Console
            from rich.live import Live  # rich takes 0.1 s, and only terminals need it

            console = Console(file=self._stream, force_terminal=True)  # rich obeys NO_COLOR by itself
            self._live = Live(
                # While it is redrawn, the jobs that there is room for; the one that stays has all.
                get_renderable=lambda: _table(
                    record,
                    self._time_left,
                    console.width,
                    None if self._stays else max(1, console.height - _LINES_BESIDE_JOBS),
                ),
                console=console,
                refresh_per_second=_REFRESHES_PER_SECOND,
            )
            self._live.start()
        self.note(f"run {record.name}: {record.folder}")
        for note in record.notes:
            self.note(note)

    def job_changed(self, record: RunRecord, name: str) -> None:
        """Show a job's new state."""
        job = record.jobs[name]
        if job.status == "failed":
            self._show_failure(record, name, job)
        elif self._live is None:
            self.note(f"{name} {_state_in_words(job)}")

    def attempt_ended(self, name: str, job: JobRecord) -> None:
        """Show how an attempt ended that another one follows."""
        attempt = job.attempts[-1]
        codes = ", ".join(f"rank {rank}: {code}" for rank, code in attempt.exit_codes.items())
        step = f" at step {attempt.last_step}" if attempt.last_step is not None else ""
        self.note(f"{name} {attempt.reason}{step} (attempt {len(job.attempts)}, exit codes {codes})")

    def note(self, text: str, *, always: bool = False) -> None:
        """Show a note; when quiet, only one that is shown `always`."""
        if always or not self._quiet:
            self._print(f"{_clock()} {text}")

    def run_ended(self, record: RunRecord) -> None:
        """Show how the run ended; on a terminal the table stays."""
        self.close()
        if record.status == "completed":
            self.note(f"run {record.name} completed in {duration(record.duration_s)}")
        else:
            is_told = any(job.status == "failed" for job in record.jobs.values())
            why = f": {record.reason}" if record.reason and not is_told else ""
            self._print(f"{_clock()} run {record.name} {record.status} after {duration(record.duration_s)}{why}")

    def close(self) -> None:
        """Stop redrawing; safe to call twice."""
        if self._live is not None:
            self._stays = True
            self._live.stop()
            self._live = None

    def _show_failure(self, record: RunRecord, name: str, job: JobRecord) -> None:
        """Show why, the failed rank's last lines without that, and where its log is; also when quiet."""
        lines = [f"{_clock()} {name} failed: {job.reason}"]
        lines += [f"  | {line}" for line in _lines_before_the_cause(job)]
        if job.logs and job.failed_rank is not None:
            lines.append(f"  the full log: {record.folder / job.logs[job.failed_rank]}")
        self._print("\n".join(lines))

    def _print(self, text: str) -> None:
        if self._live is not None:
            # A path cut at the terminal's edge could not be copied, so the terminal wraps it.
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)


def _table(record: RunRecord, time_left: TimeLeft, width: int, rows: int | None) -> Table:
    """Return the state of every job, or of as many; a narrow terminal has no room for the number of processes."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, expand=True)
    # Minimum widths keep columns in place while states and times change.
    is_wide = width >= _WIDE
    for heading, least_width in (
        ("job", 3),
        ("state", 9),
        *([("processes", 9)] if is_wide else []),
        ("time", 8),
        ("progress", 8),
    ):
        table.add_column(heading, no_wrap=True, min_width=least_width)
    # Only a column with a ratio shrinks; without one a long line would take the others' width.
    table.add_column("last line", no_wrap=True, overflow="ellipsis", ratio=1)
    shown = _jobs_shown(record, rows)
    for name, job in record.jobs.items():
        if name not in shown:
            continue
        state, elapsed, line = _state(job), _elapsed(job), _last_line(record.folder, job)
        is_again = job.status == "running" and len(job.attempts) > 1
        table.add_row(
            shortened(name, width * 9 // 20),
            Text(f"attempt {len(job.attempts)}" if is_again else state, style=_COLOURS[state]),
            *([str(job.processes)] if is_wide else []),
            duration(elapsed) if elapsed is not None else "",
            _progress(name, job, line, time_left),
            Text(line),
        )
    if others := Counter(job.status for name, job in record.jobs.items() if name not in shown):
        counts = ", ".join(f"{count} {status}" for status, count in others.items())
        table.caption = f"and {others.total()} more: {counts}"
        table.caption_justify = "left"
    return table


def _state(job: JobRecord) -> str:
    """The status, or where the result of a completed job comes from: `reused` from the cache, `taken` as asked for."""
    return "taken" if job.state == "reused" and job.reuse != NOTHING_CHANGED else job.state


def _jobs_shown(record: RunRecord, rows: int | None) -> Collection[str]:
    """The jobs that there is room for: those that run or failed, then what comes next, then what ended last."""
    jobs = record.jobs
    if rows is None or len(jobs) <= rows:
        return jobs
    first: list[str] = []
    for status in _OF_MOST_INTEREST:
        first += [name for name, job in jobs.items() if job.status == status]
    waiting = [name for name, job in jobs.items() if job.status == "waiting"]
    ended = [name for name in reversed(jobs) if name not in {*first, *waiting}]
    return frozenset([*first, *waiting, *ended][:rows])


def _progress(name: str, job: JobRecord, line: str, time_left: TimeLeft) -> str:
    share, elapsed = share_done(line), _elapsed(job)
    if job.status != "running" or share is None or elapsed is None:
        return ""
    return in_words(share, time_left.estimate(name, share, elapsed))


def _elapsed(job: JobRecord) -> float | None:
    if job.duration_s is not None or job.started is None or job.status != "running":
        return job.duration_s
    return time.time() - datetime.fromisoformat(job.started).timestamp()


def _last_line(run_folder: Path, job: JobRecord) -> str:
    if job.status in ("failed", "skipped", "canceled"):
        return job.reason or ""
    if _state(job) == "taken":
        return job.reuse or ""
    if job.trials:
        return trials_in_words(job.trials)
    if job.status == "waiting" or not job.logs:
        return ""
    lines = last_lines(run_folder / job.logs[0], 1)
    return lines[0] if lines else ""


def _lines_before_the_cause(job: JobRecord) -> list[str]:
    """The last lines of a failed job's log, without one that only says the reason again, as that of an exception."""
    lines = list(job.error_lines or ())
    last = lines[-1] if lines else ""
    said = last.partition(": error: ")[2] or last
    if said and job.reason is not None and job.reason.startswith(said):
        lines.pop()
    return lines


def _state_in_words(job: JobRecord) -> str:
    if job.status == "running":
        plural = "es" if job.processes > 1 else ""
        why = f": {job.reuse}" if job.reuse else ""
        return f"running ({job.processes} process{plural}{why})"
    if job.state == "reused":
        return f"reused from run {job.reused_from}" if job.reuse == NOTHING_CHANGED else str(job.reuse)
    if job.status == "completed":
        trials = f": {trials_in_words(job.trials)}" if job.trials else ""
        return f"completed in {duration(job.duration_s)}{trials}"
    return f"{job.status}: {job.reason}" if job.status in ("skipped", "canceled") and job.reason else job.status


def _clock() -> str:
    return time.strftime("%H:%M:%S")
