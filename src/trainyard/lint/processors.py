"""Processor time: a limit for each file, and checks that are divided over several processors."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_MOST_PROCESSORS = 32
_MOST_PARTS = 256


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

    before = signal.signal(signal.SIGPROF, _stop)
    left, _ = signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, left)
        signal.signal(signal.SIGPROF, before)


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooSlow


@contextmanager
def keeping_everything() -> Iterator[None]:
    """Do not search for cycles within the block, nor later in what it created, which is expected to be kept.

    Imports and documents are: searching them takes 3 to 6 % of a short command, and 40 % of linting 5,000 files.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def processors() -> int:
    """Return how many processors this process can divide work over: 1 where it cannot copy itself safely."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return min(_MOST_PROCESSORS, len(os.sched_getaffinity(0)))


def aside(work: Callable[[], _Result]) -> Callable[[], _Result]:
    """Start `work` in a copy of this process; return a function that waits for its result.

    What `work` changes in the copy's memory is lost. Where the copy fails, that function does the work itself, and so
    raises what it raises.
    """
    import pickle  # which most commands do without

    receiving, sending = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            with os.fdopen(sending, "wb") as pipe:
                pickle.dump(work(), pipe)
        finally:
            os._exit(0)
    os.close(sending)

    def awaited() -> _Result:
        with os.fdopen(receiving, "rb") as pipe:
            result = pipe.read()
        with suppress(ChildProcessError):  # whoever started this process may have it ignore how its children end
            os.waitpid(process, 0)
        try:
            value: _Result = pickle.loads(result)
        except (EOFError, pickle.UnpicklingError):  # nothing, or not all of it
            return work()
        return value

    return awaited


def _pipe_with(content: bytes) -> int:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(content)
    return reading


def divided(items: Sequence[_Item], work: Callable[[_Item], _Result], processes: int) -> list[_Result]:
    """Return `work` of each item, in their order, by this process and copies of it, `processes` in all.

    Each takes another part of the items when it has done one: this process from the first on, copies from the last, so
    that of two one checks files, and the other what they contain. What `work` changes in a copy is lost; what a copy
    fails at is done here.
    """
    each = len(items) // _MOST_PARTS + 1
    parts = [items[first : first + each] for first in range(0, len(items), each)]
    numbers = range(len(parts))
    # A pipe gives each byte to one reader: one for each part that is left, and the numbers for copies.
    left, from_last = _pipe_with(bytes(numbers)), _pipe_with(bytes(reversed(numbers)))

    def some(order: Iterator[int]) -> dict[int, list[_Result]]:
        results = {}
        while os.read(left, 1):
            number = next(order)
            results[number] = [*map(work, parts[number])]
        return results

    of_copies = (os.read(from_last, 1)[0] for _ in numbers)
    copies = [aside(lambda: some(of_copies)) for _ in range(min(processes, len(parts)) - 1)]
    results = some(iter(numbers))
    for copy in copies:
        results |= copy()
    os.close(left)
    os.close(from_last)
    return [each for number, part in enumerate(parts) for each in results.get(number) or map(work, part)]
