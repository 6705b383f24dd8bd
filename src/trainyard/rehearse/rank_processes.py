"""The processes of one attempt: started together, watched, and ended together when one of them fails.

Every process leads a session of its own, so that a terminal's Ctrl-C reaches the runner alone, and so that a signal to
its group reaches what it has started.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.guardian import environment_of, kill_beneath, processes_beneath

if TYPE_CHECKING:
    from trainyard.rehearse.fault_watch import FaultWatch
    from trainyard.rehearse.faults import Fault

_POLL_SECONDS = 0.1
# Of exits this close together, the culprit's log has the earliest last line: its victims write theirs later.
_SIMULTANEOUS_SECONDS = 0.05
# A shell's exit code for a child that a signal ended is this and the signal.
_SHELL_SIGNAL_BASE = 128
_SIGNALS = frozenset(signal.valid_signals())
_LAST_LINES_SECONDS = 5.0
_CHILDREN_SECONDS, _CHILDREN_PAUSE_SECONDS = 0.2, 0.005


@dataclass
class Process:
    """A process to start: a shell line, its environment and folder, and the file for its output.

    Started, it leads a group. `prefix` are words before the shell, which start it in a container: then the process is
    the engine's program, which passes on what its container says, and `ending` kills the container. As on Azure ML, the
    shell is bash where there is one.
    """

    rank: int
    command: str
    environment: Mapping[str, str]
    working_folder: Path
    log: Path
    prefix: tuple[str, ...] = ()
    shell: str = field(default_factory=lambda: shutil.which("bash") or "/bin/sh")
    ending: tuple[str, ...] = ()

    def start(self) -> None:
        """Start it. Raise OSError when that fails."""
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                [*self.prefix, self.shell, "-c", self.command],
                cwd=self.working_folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the started process, and of its group."""
        return self._popen.pid

    def wait(self) -> int:
        """Wait for its end; return its exit code, or the signal that ended it, negated: a shell's 137 is -9."""
        code = self._popen.wait()
        of_signal = code - _SHELL_SIGNAL_BASE
        return -of_signal if self.ending and of_signal in _SIGNALS else code

    def signal(self, number: int) -> None:
        """Signal its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the latter for a group of zombies
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kill it; a container first, so that its program can print the last lines."""
        if self.ending and self._popen.poll() is None:
            killed = subprocess.run(self.ending, capture_output=True, check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_LAST_LINES_SECONDS if killed.returncode == 0 else 0)
        self.signal(signal.SIGKILL)


@dataclass
class ProcessesEnded:
    """How an attempt ended.

    `failed_rank` is the first that failed by itself; `was_canceled` if the run was canceled, `timed_out` if the runner
    ended it because its time was over; `fault` is the one that it was hit with on purpose.
    """

    exit_codes: dict[int, int] = field(default_factory=dict)
    failed_rank: int | None = None
    was_canceled: bool = False
    timed_out: bool = False
    fault: Fault | None = None


class _Exit(NamedTuple):
    rank: int
    code: int
    moment: float


def run_processes(
    processes: Sequence[Process],
    cancellation: Cancellation,
    *,
    grace_seconds: float,
    beneath: Path,
    timeout_seconds: float | None = None,
    helpers: Collection[int] = (),
    faults: FaultWatch | None = None,
    on_started: Callable[[list[int]], None] = lambda process_ids: None,
) -> ProcessesEnded:
    """Run processes until all but the `helpers` (by rank), which only serve the others, have ended; return how.

    `on_started` is called with the processes' ids, each the leader of its session, when all of them have started.

    When one fails, the time is over or the run is canceled, all others get SIGTERM, and after `grace_seconds` SIGKILL.
    `faults` strike while they run: a preemption ends all of them in the same way, after its own notice. Whatever they
    started (recognized by a working folder beneath `beneath`) is ended with them, so nothing is left running. Raise
    `OSError` when a process cannot be started.
    """
    watch = _Watch(cancellation, beneath)
    try:
        for process in processes:
            watch.start(process)
        on_started([process.pid for process in processes])
        deadline = time.monotonic() + (float("inf") if timeout_seconds is None else timeout_seconds)
        watch.until_end(grace_seconds, deadline, frozenset(helpers), faults)
        if not any(watch.ended.exit_codes.values()):
            watch.let_children_finish()
        return watch.ended
    finally:
        for process in watch.started.values():
            process.kill()
        kill_beneath(beneath)
        for process in watch.started.values():
            process.wait()


class _Watch:
    """The processes that have been started, by rank, and how they have ended so far."""

    def __init__(self, cancellation: Cancellation, beneath: Path) -> None:
        self.started: dict[int, Process] = {}
        self.ended = ProcessesEnded()
        self._exits: queue.SimpleQueue[_Exit] = queue.SimpleQueue()
        self._cancellation = cancellation
        self._beneath = beneath

    def start(self, process: Process) -> None:
        process.start()
        self.started[process.rank] = process
        threading.Thread(target=self._report_exit, args=(process,), daemon=True).start()

    def _report_exit(self, process: Process) -> None:
        code = process.wait()
        self._exits.put(_Exit(process.rank, code, time.monotonic()))

    def until_end(
        self, grace_seconds: float, deadline: float, helpers: frozenset[int], faults: FaultWatch | None
    ) -> None:
        """Watch until all have ended, and end the others when one fails, or the run must end."""
        ended = self.ended
        while left := self._remaining():
            if left.keys() <= helpers and ended.failed_rank is None:
                self._end(grace_seconds)
                return
            failures = self._failures(_POLL_SECONDS)
            if self._cancellation.reason is not None:
                ended.was_canceled = True
                self._end(grace_seconds)
            elif time.monotonic() > deadline:
                ended.timed_out = True
                self._end(grace_seconds)
            elif failures:
                ended.failed_rank = self._culprit(failures)
                self._end(grace_seconds)
            elif faults is not None and (fault := faults.due()) is not None:
                ended.fault = fault
                if fault.rank is not None:
                    self._kill_rank(fault.rank)
                    continue
                faults.announce()
                self._end(faults.notice_seconds)
                ended.was_canceled = self._cancellation.reason is not None

    def let_children_finish(self) -> None:
        """Wait a moment for what shells have left in the background, such as the last lines of `echo a & echo b`."""
        deadline = time.monotonic() + _CHILDREN_SECONDS
        while self._cancellation.reason is None and time.monotonic() < deadline and processes_beneath(self._beneath):
            time.sleep(_CHILDREN_PAUSE_SECONDS)

    def _remaining(self) -> dict[int, Process]:
        return {rank: process for rank, process in self.started.items() if rank not in self.ended.exit_codes}

    def _failures(self, timeout_seconds: float) -> list[_Exit]:
        """Take note of exits, waiting at most so long for the first; return those that are failures."""
        exits: list[_Exit] = []
        with contextlib.suppress(queue.Empty):
            exits.append(self._exits.get(timeout=timeout_seconds))
            while True:
                exits.append(self._exits.get_nowait())
        self.ended.exit_codes.update((exit.rank, exit.code) for exit in exits)
        return [exit for exit in exits if exit.code != 0]

    def _culprit(self, failures: list[_Exit]) -> int:
        """The rank that failed by itself, of those that failed at about the same time."""
        deadline = time.monotonic() + _SIMULTANEOUS_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            failures += self._failures(left)
        killed = self.ended.fault.rank if self.ended.fault is not None else None
        if killed is not None and killed in self.started:
            return killed
        earliest = min(exit.moment for exit in failures)
        together = [exit for exit in failures if exit.moment - earliest <= _SIMULTANEOUS_SECONDS]
        return min(together, key=lambda exit: self.started[exit.rank].log.stat().st_mtime_ns).rank

    def _kill_rank(self, rank: int) -> None:
        """Kill the processes of one rank: its group, or what carries its number where mpirun has started all ranks."""
        mark = f"\0OMPI_COMM_WORLD_RANK={rank}\0".encode()
        by_mpirun = [pid for pid in processes_beneath(self._beneath) if mark in environment_of(pid)]
        for pid in by_mpirun:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not by_mpirun and rank in self._remaining():
            self.started[rank].kill()

    def _end(self, grace_seconds: float) -> None:
        """End those that remain: SIGTERM, and SIGKILL when the time is over."""
        ending = list(self._remaining().values())
        for process in ending:
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while self._remaining() or self._has_members(ending):
            if time.monotonic() > deadline or self._cancellation.at_once.is_set():
                for process in ending:
                    process.kill()
            self._failures(_POLL_SECONDS)

    def _has_members(self, processes: Collection[Process]) -> bool:
        """Return whether any process of these groups is alive: a shell may end before the Python that it started."""
        groups = {process.pid for process in processes}
        for pid in processes_beneath(self._beneath):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) in groups:
                    return True
        return False
