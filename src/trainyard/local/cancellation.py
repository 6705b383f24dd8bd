"""Ctrl-C and SIGTERM: the first one asks every job to end, the second ends them at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RECEIVED = " received"


def exit_code_after(reason: str | None) -> int:
    """Return the exit code of a run that was canceled for a reason: 128 + the signal, as shells report it, else 1."""
    numbers = {f"{each.name}{_RECEIVED}": int(each) for each in _SIGNALS}
    return 128 + numbers[reason] if reason in numbers else 1


class Cancellation:
    """What the runner's threads watch: whether to end their processes, and whether to do so at once."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.requested = threading.Event()
        self.at_once = threading.Event()

    def request(self, reason: str) -> None:
        """Ask all jobs to end, each within its grace period. The first reason is kept."""
        if not self.requested.is_set():
            self.reason = reason
            self.requested.set()


@contextmanager
def canceled_by_signals(cancellation: Cancellation) -> Iterator[None]:
    """Turn signals that would end this process into a cancellation while the block lasts; the second one is `at_once`.

    Only a main thread can receive signals; in another thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    is_first = True

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal is_first
        if is_first:
            cancellation.request(f"{signal.Signals(number).name}{_RECEIVED}")
        else:
            cancellation.at_once.set()
        is_first = False

    previous = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
