"""Ctrl-C and SIGTERM: the first one asks every job to end, the second ends them at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_WATCH_SECONDS = 0.2
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RECEIVED = " received"


def exit_code_after(reason: str | None) -> int:
    """Return the exit code of a run that was canceled for a reason: 128 + the signal, as shells report it, else 1."""
    numbers = {f"{known.name}{_RECEIVED}": int(known) for known in _SIGNALS}
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
def limited(parent: Cancellation, seconds: float | None) -> Iterator[Cancellation]:
    """Yield a cancellation that is requested when its parent's is, or when the time is over."""
    child, is_over = Cancellation(), threading.Event()
    deadline = time.monotonic() + (float("inf") if seconds is None else seconds)

    def watch() -> None:
        while not is_over.wait(_WATCH_SECONDS):
            if parent.requested.is_set():
                child.request(parent.reason or "")
            elif time.monotonic() > deadline:
                child.request(f"its limits.timeout of {seconds} s was over")
            if parent.at_once.is_set():
                child.at_once.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield child
    finally:
        is_over.set()
        thread.join()


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
