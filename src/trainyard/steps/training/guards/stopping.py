"""Being told to stop: whatever asks raises a flag here, and the step's agreement makes it everybody's."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType

from trainyard.foundation.configs.training import Training

_LOOK_EVERY_SECONDS = 1.0
"""A stop file may lie on a network mount, where each look costs a round trip."""


class StopRequest:
    """Whether this rank was asked to stop, and by what. Installs its signal handler and starts its clock when made."""

    def __init__(self, stop_file: Path | None = None, time_limit_seconds: int | None = None) -> None:
        self.reason: str | None = None
        """What asked first."""
        self._stop_file = stop_file
        self._next_look = 0.0
        self._time_limit_seconds = time_limit_seconds
        self._deadline = time.monotonic() + (float("inf") if time_limit_seconds is None else time_limit_seconds)
        signal.signal(signal.SIGTERM, self._on_signal)

    @classmethod
    def of(cls, settings: Training) -> StopRequest:
        """As a step's settings have it."""
        return cls(Path(settings.stop_file) if settings.stop_file else None, settings.time_limit_seconds)

    def ask(self, reason: str) -> None:
        """Ask to stop; from any thread."""
        self.reason = self.reason or reason

    def is_raised(self) -> bool:
        """Whether to stop; looks at the clock, and for the stop file at most once a second."""
        now = time.monotonic()
        if self.reason is None and now >= self._deadline:
            self.ask(f"the time limit of {self._time_limit_seconds} seconds")
        if self.reason is None and self._stop_file is not None and now >= self._next_look:
            self._next_look = now + _LOOK_EVERY_SECONDS
            if self._stop_file.exists():
                self.ask(f"the file {self._stop_file} appeared")
        return self.reason is not None

    def _on_signal(self, signal_number: int, _: FrameType | None) -> None:
        self.ask(signal.Signals(signal_number).name)
