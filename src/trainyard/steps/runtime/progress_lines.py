"""A line every few seconds while something long goes on, so that a log shows life without drowning in it."""

from __future__ import annotations

import time


class ProgressLines:
    """Prints `verb done of total things` at most once per `every_seconds`."""

    def __init__(self, verb: str, total: int, things: str, every_seconds: float = 5.0) -> None:
        self._verb, self._total, self._things = verb, total, things
        self._every_seconds = every_seconds
        self._done = 0
        self._last = time.monotonic()

    def advance(self, count: int) -> None:
        """Count `count` more things as done."""
        self._done += count
        now = time.monotonic()
        if now - self._last >= self._every_seconds:
            self._last = now
            print(f"{self._verb} {self._done} of {self._total} {self._things}", flush=True)
