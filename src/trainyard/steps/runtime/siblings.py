"""Ranks of the same node that end before they joined the others, which no process group could report.

The kernel shows each process's environment to its user, so a rank sees which ranks run beside it. Only the standard
library is imported here: watching begins before torch is imported, which takes seconds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_LOOK_EVERY_SECONDS = 0.25
_GONE_SECONDS = 3.0
"""A rank may be started again at once, for example by a wrapper."""
_SAME_JOB = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
_PROCESSES = Path("/proc")


class SiblingWatch:
    """Watches in a thread, until closed, which ranks have processes on this node. Without /proc it sees none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._job = {name: environment[name] for name in _SAME_JOB if name in environment}
        self._own_rank = environment.get("RANK")
        self._seen: dict[int, float] = {}
        """When each rank was last seen."""
        self._last_look = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="siblings", daemon=True)
        if len(self._job) == len(_SAME_JOB):
            self._look()
            self._thread.start()

    def gone(self) -> list[int]:
        """Return the ranks that ran on this node and do so no longer."""
        seen, last_look = dict(self._seen), self._last_look
        return sorted(rank for rank, moment in seen.items() if last_look - moment >= _GONE_SECONDS)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_EVERY_SECONDS):
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        for rank in _ranks_running(self._job):
            if str(rank) != self._own_rank:
                self._seen[rank] = now
        self._last_look = now


def _ranks_running(job: Mapping[str, str]) -> Iterator[int]:
    """Yield the rank of each process on this node that belongs to the job and has not ended."""
    expected = {f"{name}={value}".encode() for name, value in job.items()}
    for process in _PROCESSES.glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # another user's, or it has just ended
        if expected <= set(variables):
            yield from (int(text[5:]) for text in variables if text.startswith(b"RANK=") and text[5:].isdigit())


_watch: SiblingWatch | None = None


def watch_siblings() -> SiblingWatch:
    """Return this process's watch, which begins with the first call."""
    global _watch
    if _watch is None:
        _watch = SiblingWatch(os.environ)
    return _watch
