"""Restarts inside a job: the process that the platform started only watches another one, which does the step's work.

When a worker dies, every watcher starts its own again. Watchers agree in a store that rank 0's watcher hosts at
MASTER_ADDR:MASTER_PORT; it outlives the workers, which meet there too, at each attempt under another prefix, as the
workers of torchrun meet in the store of its agent.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from trainyard.steps.runtime.errors import (
    BUG_EXIT_CODE,
    DEVICE_EXIT_CODE,
    LOST_EXIT_CODE,
    MEMORY_EXIT_CODE,
    STOPPED_EXIT_CODE,
    STORAGE_EXIT_CODE,
    SetupError,
    first_line,
)
from trainyard.steps.runtime.rank_variables import RankVariables, read_rank_variables

if TYPE_CHECKING:
    from trainyard.steps.runtime.meeting import Store

ATTEMPT_VARIABLE = "TRAINYARD_ATTEMPT"
"""Set for a worker: which attempt it is, from 0."""
_LOOK_EVERY_SECONDS = 0.2
_VICTIM_WAITS_SECONDS = 15.0
"""A rank that lost another leaves it to that one's watcher to say why; only if nobody says anything, it asks itself."""
_FAILED_WAITS_SECONDS = 2.0
"""What a worker reports as its own failure may follow from another's death, of which a watcher then knows already."""
_END_TOGETHER_SECONDS = 30.0
_RESTARTED = {
    LOST_EXIT_CODE: "lost another rank",
    DEVICE_EXIT_CODE: "had a fault of its device",
    STORAGE_EXIT_CODE: "could not read or write a file",
}
"""By exit codes of workers, what another start may help with, in words."""
_NOT_RESTARTED = {
    1: "reported an error",
    2: "reported an error",
    BUG_EXIT_CODE: "was ended by an exception",
    MEMORY_EXIT_CODE: "ran out of memory",
}
"""What would happen again."""
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def is_worker() -> bool:
    """Return whether this process was started by a watcher."""
    return ATTEMPT_VARIABLE in os.environ


def end_with_watcher() -> None:
    """Let the kernel end this worker when its watcher ends, however that happens. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_watched(command: Sequence[str], restarts: int, timeout_seconds: int) -> int:
    """Run a command as this rank's worker, and start it again up to `restarts` times when a rank's worker has died.

    Return the step's exit code. SetupError where another launcher restarts ranks, or would notice a dead one.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise SetupError("--restarts: torchrun restarts ranks by itself; use its --max-restarts instead")
    if os.environ.get("HOROVOD_CONTROLLER") == "mpi":
        raise SetupError(
            "--restarts does not work with HOROVOD_CONTROLLER=mpi, whose ranks end together; leave one out"
        )
    watcher = _Watcher(command, read_rank_variables(os.environ), restarts, timeout_seconds)
    return watcher.run()


class _Watcher:
    """One rank's watcher."""

    def __init__(self, command: Sequence[str], variables: RankVariables, restarts: int, timeout_seconds: int) -> None:
        self._command, self._variables, self._restarts = command, variables, restarts
        self._timeout = timedelta(seconds=timeout_seconds)
        self._told_to_stop = False
        self._worker: subprocess.Popen[bytes] | None = None
        self._board: Store | None = None
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the worker too

    def run(self) -> int:
        """Start the worker as often as agreed on. Return the step's exit code."""
        for attempt in itertools.count():
            worker = self._start(attempt)
            try:
                self._board = self._board or self._open_board()
                verdict = self._follow(self._board, worker, attempt)
            except RuntimeError as failure:
                verdict = f"fail the watcher of rank 0 does not answer: {first_line(failure)}"
            code = worker.poll()
            if code is None or verdict.startswith("restart"):
                worker.kill()
                code = worker.wait()
            if not verdict.startswith("restart"):
                return self._end(verdict, code)
            if self._variables.rank == 0:
                reason = verdict.removeprefix("restart ")
                print(f"restart {attempt + 1} of {self._restarts}: {reason}; all ranks start again", flush=True)
        raise AssertionError("an attempt ends in a verdict")

    def _start(self, attempt: int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, ATTEMPT_VARIABLE: str(attempt), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        if self._variables.master_address is not None:
            environment["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        # The command is this process's own.
        self._worker = subprocess.Popen(self._command, env=environment)  # may import: not trainyard
        if self._told_to_stop:
            self._worker.terminate()
        return self._worker

    def _open_board(self) -> Store:
        from trainyard.steps.runtime.meeting import HashStore, PrefixStore, open_store  # torch, once the worker starts

        variables = self._variables
        if variables.master_address is None:
            return HashStore()
        store = open_store(
            variables.master_address,
            variables.master_port,
            world_size=variables.world_size,
            hosts=variables.rank == 0,
            timeout=self._timeout,
        )
        return PrefixStore("watchers", store)

    def _follow(self, board: Store, worker: subprocess.Popen[bytes], attempt: int) -> str:
        """Wait for the verdict on an attempt, the same on every rank: `end`, `restart <why>` or `fail <why>`.

        The first one counts. A watcher whose worker has ended contributes its own.
        """
        key, ended, counted = f"{attempt}/verdict", 0.0, False
        while not board.check([key]):
            time.sleep(_LOOK_EVERY_SECONDS)
            code = worker.poll()
            if code is None:
                continue
            ended = ended or time.monotonic()
            waited = time.monotonic() - ended
            if code in (0, STOPPED_EXIT_CODE):
                finished = board.add(f"{attempt}/finished", 0 if counted else 1)
                counted = True
                if finished == self._variables.world_size or waited > _END_TOGETHER_SECONDS:
                    board.compare_set(key, "", "end")
            elif waited >= _patience(code):
                failures = f"failures of node {self._variables.node_rank}"
                verdict = self._verdict_on(code, attempt, failures_before=board.add(failures, 0))
                if board.compare_set(key, "", verdict).decode() == verdict and _is_of_node(code):
                    board.add(failures, 1)
        return board.get(key).decode()

    def _verdict_on(self, code: int, attempt: int, failures_before: int) -> str:
        node = f"node {self._variables.node_rank} ({socket.gethostname()})"
        rank = f"rank {self._variables.rank} on {node}"
        if code >= 0 and code not in _RESTARTED:
            what = _NOT_RESTARTED.get(code, f"ended with exit code {code}")
            return f"fail {rank} {what}, which another start would not change"
        died = f"{rank} {_RESTARTED[code]}" if code >= 0 else f"{rank} was killed by {signal.Signals(-code).name}"
        if _is_of_node(code) and failures_before:
            died += f" (failure {failures_before + 1} on {node}: leave that machine out if it goes on)"
        if self._told_to_stop:
            return f"fail {died} while it was to stop"
        if attempt >= self._restarts:
            return f"fail {died}, and the restarts are used up (--restarts {self._restarts})"
        return f"restart {died}"

    def _end(self, verdict: str, code: int) -> int:
        """Leave, rank 0 last because it hosts the store. Return this rank's exit code."""
        if verdict != "end" and self._variables.rank == 0:
            print(f"error: {verdict.removeprefix('fail ')}", file=sys.stderr, flush=True)
        if self._board is not None:
            with suppress(RuntimeError):
                self._leave(self._board)
        if code < 0 and self._told_to_stop:
            return 128 - code
        between_them = (*_RESTARTED, BUG_EXIT_CODE, MEMORY_EXIT_CODE)
        return 1 if code < 0 or code in between_them else code

    def _leave(self, board: Store) -> None:
        others_left = board.add("left", 0 if self._variables.rank == 0 else 1)
        deadline = time.monotonic() + _FAILED_WAITS_SECONDS
        while self._variables.rank == 0 and others_left < self._variables.world_size - 1:
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_EVERY_SECONDS)
            others_left = board.add("left", 0)

    def _on_signal(self, number: int, _: object) -> None:
        self._told_to_stop = True
        if self._worker is not None:
            self._worker.send_signal(number)


def _is_of_node(code: int) -> bool:
    """Return whether a worker's end says something of its machine; a mount that fails may be that of all."""
    return code < 0 or code == DEVICE_EXIT_CODE


def _patience(code: int) -> float:
    """Return for how many seconds to wait for other watchers' verdict on a worker's end; 0 for one that died."""
    if _is_of_node(code):
        return 0.0
    return _VICTIM_WAITS_SECONDS if code == LOST_EXIT_CODE else _FAILED_WAITS_SECONDS


def own_command(program: str, arguments: Sequence[str] | None) -> list[str]:
    """Return the command that starts this step again, with the interpreter's own options."""
    if arguments is None:
        return [sys.executable, *sys.orig_argv[1:]]
    return [sys.executable, "-m", program, *arguments]
