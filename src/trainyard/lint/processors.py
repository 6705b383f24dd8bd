"""Processor time: a limit for each file, and the checks of many files divided over several processors."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# A copy of this process takes some milliseconds, and repeats what is kept for several items.
_FEWEST_ITEMS_EACH = 150
# What each copy takes one after the other: pipelines take longer than other files, and come last.
_PARTS_EACH = 4
# In a copy of this process: what it does, and with which items.
_work: tuple[Callable[[Any], Any], Sequence[Any]]


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


def processors() -> int:
    """Return how many processors this process can divide work over: 1 where it cannot copy itself safely."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return len(os.sched_getaffinity(0))


def divided(items: Sequence[_Item], work: Callable[[_Item], _Result], processes: int) -> list[_Result]:
    """Return `work` of each item, in their order, done by at most so many copies of this process.

    What `work` changes in a copy is lost. What a copy fails at is done here. Linting 500 files takes 25 % longer
    without, on two processors that have nothing else to do.
    """
    count = min(processes, len(items) // _FEWEST_ITEMS_EACH)
    if count < 2:
        return [work(item) for item in items]
    # Most folders are not divided, and are checked sooner without these.
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    parts = count * _PARTS_EACH
    bounds = [len(items) * part // parts for part in range(parts + 1)]
    try:
        with ProcessPoolExecutor(count, get_context("fork"), _begin, (work, items)) as copies:
            return [result for part in copies.map(_results, bounds, bounds[1:]) for result in part]
    except Exception:
        return [work(item) for item in items]


def _begin(work: Callable[[Any], Any], items: Sequence[Any]) -> None:
    global _work
    _work = work, items


def _results(first: int, end: int) -> list[Any]:
    work, items = _work
    return [work(item) for item in items[first:end]]
