"""Ctrl-C and SIGTERM: the first one asks every job to end, the second ends them at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from trainyard.rehearse.errors import RunError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RECEIVED = " received"


def exit_code_after(reason: str | None) -> int:
    """Return the exit code of a run that was canceled for a reason: 128 + the signal, as shells report it, else 1."""
    numbers = {f"{known.name}{_RECEIVED}": int(known) for known in _SIGNALS}
    return 128 + numbers[reason] if reason in numbers else 1


class Cancellation:
    """What the runner's threads watch: whether to end their processes, and whether to do so `at_once`.

    One with a `parent` is requested with it, or when its own time is over.
    """

    def __init__(self, parent: Cancellation | None = None, limit_seconds: float | None = None) -> None:
        self.at_once: threading.Event = threading.Event() if parent is None else parent.at_once
        self._parent = parent
        self._limit_seconds = float("inf") if limit_seconds is None else limit_seconds
        self._started = time.monotonic()
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """Why all jobs are to end, each within its grace period; None while they are not. The first is kept."""
        if self._reason is None and self._parent is not None:
            self._reason = self._parent.reason
        if self._reason is None and time.monotonic() - self._started > self._limit_seconds:
            self._reason = f"its limits.timeout of {self._limit_seconds} s was over"
        return self._reason

    def request(self, reason: str) -> None:
        """Ask all jobs to end."""
        self._reason = self.reason or reason

    def check(self) -> None:
        """Raise `RunError` with the reason if all jobs are to end: what no process does must end by itself."""
        if self.reason is not None:
            raise RunError(self.reason)


@contextmanager
def canceled_by_signals(cancellation: Cancellation, answer: Callable[[str], object]) -> Iterator[None]:
    """Turn signals that would end this process into a cancellation while the block lasts; the second one is `at_once`.

    `answer` is called with what each of the two does, in a signal handler. Only a main thread can receive signals; in
    another thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    is_first = True

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_first
        received = f"{signal.Signals(number).name}{_RECEIVED}"
        if is_first:
            cancellation.request(received)
            answer(f"{received}: asking the jobs to end; once more ends them at once")
        elif not cancellation.at_once.is_set():
            cancellation.at_once.set()
            answer(f"{received} again: ending the jobs at once")
        is_first = False

    previous = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
