"""The processor time that one file may take: who has written it may have meant it to take all."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CPU_SECONDS = 5.0


class TooSlow(Exception):
    """A file that takes more processor time than it may."""


@contextmanager
def limited_cpu(seconds: float) -> Iterator[None]:
    """Raise TooSlow within the block when it has taken so much processor time, that of an inner block aside.

    Only a process's main thread can be interrupted: elsewhere, as in the language server, there is no limit.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    left, _ = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, left)
        signal.signal(signal.SIGPROF, before)
