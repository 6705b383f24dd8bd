"""Long work: shared out over processes, with a line in the log now and then to show that it progresses."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import TypeVar

from trainyard.steps.runtime.errors import StepError

Item = TypeVar("Item")
Result = TypeVar("Result")

_IN_FLIGHT_PER_PROCESS = 4


def in_processes(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int, what: str
) -> Iterator[tuple[Item, Result]]:
    """Yield each item, in order, with the result of `work`, which must pickle. StepError if a process dies.

    `what` completes "a process that …". Only a few items and results are in memory at a time.
    """
    # Processes are spawned, not forked: a fork would inherit the locks of whatever threads run here.
    with ProcessPoolExecutor(processes, get_context("spawn"), _end_with_parent) as pool:
        waiting: deque[tuple[Item, Future[Result]]] = deque()
        try:
            for item in items:
                waiting.append((item, pool.submit(work, item)))
                if len(waiting) >= _IN_FLIGHT_PER_PROCESS * processes:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        except BrokenProcessPool:
            raise StepError(
                f"a process that {what} was killed, probably because memory ran out; try fewer --workers"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this process when its parent ends in any way; otherwise it would wait for work forever."""
    threading.Thread(target=_wait_for_parent_and_end, name="parent", daemon=True).start()


def _wait_for_parent_and_end() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class ProgressLines:
    """Prints `verb done of total things` at most every `every_seconds`, so that a log shows life but is not flooded."""

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


def peak_resident_bytes() -> int:
    """Return the most main memory that this process has held since it started."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kibibytes on Linux: getrusage(2)
