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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.faults import Fault, FaultWatch
from trainyard.rehearse.guardian import kill_beneath, processes_beneath, variables_of

_POLL_SECONDS = 0.1
# Of exits this close together, the culprit's log has the earliest last line: its victims write theirs later.
_SIMULTANEOUS_SECONDS = 0.05
# A shell's exit code for a child that a signal ended is this and the signal.
_SHELL_SIGNAL_BASE = 128
_SIGNALS = frozenset(signal.valid_signals())
_LAST_LINES_SECONDS = 5.0


@dataclass(frozen=True)
class ProcessStart:
    """One process to start: a shell line, its environment and folder, and the file for its output.

    `prefix` are words before the shell, which start it in a container, which `ending` kills.
    """

    rank: int
    command: str
    environment: Mapping[str, str]
    working_folder: Path
    log: Path
    prefix: tuple[str, ...] = ()
    shell: str = field(default_factory=lambda: shell_path())
    ending: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class _Process:
    """A started process, which leads a group; or an engine's program, which passes on what its container says."""

    popen: subprocess.Popen[bytes]
    ending: tuple[str, ...]

    @property
    def pid(self) -> int:
        return self.popen.pid

    def wait(self) -> int:
        """Wait for its end; return its exit code, or the signal that ended it, negated: a shell's 137 is -9."""
        code = self.popen.wait()
        of_signal = code - _SHELL_SIGNAL_BASE
        return -of_signal if self.ending and of_signal in _SIGNALS else code

    def signal(self, number: int) -> None:
        """Signal its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the latter for a group of zombies
            os.killpg(self.popen.pid, number)

    def kill(self) -> None:
        """Kill it; a container first, so that its program can print the last lines."""
        if self.ending and self.popen.poll() is None:
            killed = subprocess.run(self.ending, capture_output=True, check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(_LAST_LINES_SECONDS if killed.returncode == 0 else 0)
        self.signal(signal.SIGKILL)


@dataclass(frozen=True)
class _Exit:
    rank: int
    code: int
    moment: float


def run_processes(
    starts: Sequence[ProcessStart],
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
    exits: queue.SimpleQueue[_Exit] = queue.SimpleQueue()
    processes: dict[int, _Process] = {}
    try:
        for start in starts:
            processes[start.rank] = process = _start(start)
            threading.Thread(target=_report_exit, args=(process, start.rank, exits), daemon=True).start()
        on_started([process.pid for process in processes.values()])
        logs = {start.rank: start.log for start in starts}
        deadline = time.monotonic() + (float("inf") if timeout_seconds is None else timeout_seconds)
        return _watch(processes, logs, exits, cancellation, grace_seconds, beneath, deadline, helpers, faults)
    finally:
        for process in processes.values():
            process.kill()
        kill_beneath(beneath)
        for process in processes.values():
            process.wait()


def shell_path() -> str:
    """Return the shell that runs commands, as on Azure ML: bash where there is one."""
    return shutil.which("bash") or "/bin/sh"


def _start(start: ProcessStart) -> _Process:
    with start.log.open("ab") as log:
        popen = subprocess.Popen(
            [*start.prefix, start.shell, "-c", start.command],
            cwd=start.working_folder,
            env=dict(start.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _Process(popen, start.ending)


def _report_exit(process: _Process, rank: int, exits: queue.SimpleQueue[_Exit]) -> None:
    code = process.wait()
    exits.put(_Exit(rank, code, time.monotonic()))


def _watch(
    processes: Mapping[int, _Process],
    logs: Mapping[int, Path],
    exits: queue.SimpleQueue[_Exit],
    cancellation: Cancellation,
    grace_seconds: float,
    beneath: Path,
    deadline: float,
    helpers: Collection[int],
    faults: FaultWatch | None,
) -> ProcessesEnded:
    ended = ProcessesEnded()
    while len(ended.exit_codes) < len(processes):
        left = processes.keys() - ended.exit_codes.keys()
        if left <= set(helpers) and ended.failed_rank is None:
            _end({rank: processes[rank] for rank in left}, exits, ended, cancellation, grace_seconds, beneath)
            break
        failures = [exit for exit in _collect(exits, ended, _POLL_SECONDS) if exit.code != 0]
        is_late = time.monotonic() > deadline
        if failures or is_late or cancellation.requested.is_set():
            if cancellation.requested.is_set():
                ended.was_canceled = True
            elif is_late:
                ended.timed_out = True
            else:
                failures += [exit for exit in _collect_for(exits, ended, _SIMULTANEOUS_SECONDS) if exit.code != 0]
                killed = ended.fault.rank if ended.fault is not None else None
                ended.failed_rank = killed if killed in processes else _first(failures, logs)
            remaining = {rank: process for rank, process in processes.items() if rank not in ended.exit_codes}
            _end(remaining, exits, ended, cancellation, grace_seconds, beneath)
        elif faults is not None and (fault := faults.due()) is not None:
            ended.fault = fault
            remaining = {rank: process for rank, process in processes.items() if rank not in ended.exit_codes}
            if fault.rank is not None:
                _kill_rank(fault.rank, remaining, beneath)
                continue
            faults.announce()
            _end(remaining, exits, ended, cancellation, faults.notice_seconds, beneath)
            ended.was_canceled = cancellation.requested.is_set()
    return ended


def _kill_rank(rank: int, processes: Mapping[int, _Process], beneath: Path) -> None:
    """Kill the processes of one rank: its group, or what carries its number where mpirun has started all ranks."""
    mark = f"OMPI_COMM_WORLD_RANK={rank}".encode()
    by_mpirun = [pid for pid in processes_beneath(beneath) if mark in variables_of(pid)]
    for pid in by_mpirun:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not by_mpirun and rank in processes:
        processes[rank].kill()


def _first(failures: Sequence[_Exit], logs: Mapping[int, Path]) -> int:
    earliest = min(exit.moment for exit in failures)
    together = [exit for exit in failures if exit.moment - earliest <= _SIMULTANEOUS_SECONDS]
    return min(together, key=lambda exit: logs[exit.rank].stat().st_mtime_ns).rank


def _end(
    remaining: Mapping[int, _Process],
    exits: queue.SimpleQueue[_Exit],
    ended: ProcessesEnded,
    cancellation: Cancellation,
    grace_seconds: float,
    beneath: Path,
) -> None:
    for process in remaining.values():
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while not remaining.keys() <= ended.exit_codes.keys() or _has_members(remaining.values(), beneath):
        if time.monotonic() > deadline or cancellation.at_once.is_set():
            for process in remaining.values():
                process.kill()
        _collect(exits, ended, _POLL_SECONDS)


def _has_members(processes: Iterable[_Process], beneath: Path) -> bool:
    """Return whether any process of these groups is alive: a shell may end before the Python that it started."""
    groups = {process.pid for process in processes}
    for pid in processes_beneath(beneath):
        try:
            if os.getpgid(pid) in groups:
                return True
        except ProcessLookupError:
            continue
    return False


def _collect(exits: queue.SimpleQueue[_Exit], ended: ProcessesEnded, timeout_seconds: float) -> list[_Exit]:
    """Return the exits so far, waiting at most so long for the first."""
    found = []
    try:
        found.append(exits.get(timeout=timeout_seconds))
        while True:
            found.append(exits.get_nowait())
    except queue.Empty:
        pass
    ended.exit_codes.update((exit.rank, exit.code) for exit in found)
    return found


def _collect_for(exits: queue.SimpleQueue[_Exit], ended: ProcessesEnded, seconds: float) -> list[_Exit]:
    deadline = time.monotonic() + seconds
    found = []
    while (left := deadline - time.monotonic()) > 0:
        found += _collect(exits, ended, left)
    return found
