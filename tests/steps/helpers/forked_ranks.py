"""Ranks that start in a moment: forked from a process that has imported torch but runs nothing yet.

What a test of hundreds of restarts needs; any other test is spared seconds of imports a rank. Each rank is a real
process with its own memory, process group and end, as `rank_processes` starts them. The process that they are forked
from is itself forked, from the server of forked_python.py, and imports only what is not imported there.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forked_python import PLACE_FOR_VARIABLES, shared_python
from rank_processes import LIMIT_SECONDS, TESTS, clean_environment, free_port, rank_variables, without_greetings

_IMPORTED_BEFORE = (
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "tiny_task",
    "torch.distributed._functional_collectives",
    "trainyard.steps.evaluation.evaluate_model",
    "trainyard.steps.training.engines.replicas",
    "trainyard.steps.training.engines.deepspeed_engine",
    "trainyard.steps.training.engines.fsdp",
    "trainyard.steps.training.lightning.lightning_training",
    "trainyard.steps.training.run_training",
    "trainyard.steps.training.tasks.image_classification",
    "trainyard.steps.training.tasks.language_modeling",
)
"""What one training or another imports eventually, beside OF_STEPS in forked_python.py."""
_SHOWN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""By which ranks find each other in /proc."""
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that a process gets when its parent dies."""


class RankServer:
    """Starts steps as forked ranks, one step at a time. A context manager: nothing outlives it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [shared_python(), __file__, sys.executable],
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._pids: list[int] = self._receive()  # none yet: everything is imported

    def start(
        self,
        step: str,
        arguments: Sequence[object],
        world_size: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Start a step with so many ranks, all writing to one log; gives their process ids by rank."""
        return self._start(step, arguments, [log] * world_size, environment or {})

    def run(
        self,
        step: str,
        arguments: Sequence[object],
        world_size: int,
        *,
        environment: Mapping[str, str] | None = None,
        delayed_rank: int | None = None,
        nodes: int = 1,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> tuple[list[int], list[str]]:
        """Run a step to its end; gives exit codes and outputs by rank. `delayed_rank` begins two seconds after."""
        with tempfile.TemporaryDirectory() as folder:
            logs = [Path(folder) / f"rank-{rank}.log" for rank in range(world_size)]
            self._start(step, arguments, logs, environment or {}, nodes, delayed_rank)
            exit_codes = self.wait(limit_seconds)
            return exit_codes, [without_greetings(log.read_text()) for log in logs]

    def _start(
        self,
        step: str,
        arguments: Sequence[object],
        logs: Sequence[Path],
        environment: Mapping[str, str],
        nodes: int = 1,
        delayed_rank: int | None = None,
    ) -> list[int]:
        port = free_port()
        ranks = [
            {
                "environment": {**environment, **rank_variables(rank, len(logs), port, nodes)},
                "log": str(log),
                "delay_seconds": 2 if rank == delayed_rank else 0,
            }
            for rank, log in enumerate(logs)
        ]
        self._send({"step": step, "arguments": [str(argument) for argument in arguments], "ranks": ranks})
        self._pids = [int(pid) for pid in self._receive()]
        return self._pids

    def wait(self, limit_seconds: float = LIMIT_SECONDS) -> list[int]:
        """Exit codes by rank, once all have ended; a rank that a signal ended has the signal's negative.

        Ranks that run on after the limit are killed.
        """
        limit = threading.Timer(limit_seconds, self._kill_all)
        limit.start()
        try:
            return [os.waitstatus_to_exitcode(int(status)) for status in self._receive()]
        finally:
            limit.cancel()

    def __enter__(self) -> RankServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # ranks that still run end with it
        self._process.wait()

    def _kill_all(self) -> None:
        for pid in self._pids:
            send_signal(pid, signal.SIGKILL)

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _receive(self) -> list[Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server of ranks has ended"
        answer: list[Any] = json.loads(line)
        return answer


@functools.cache
def forked_ranks() -> RankServer:
    """The one server of this test process, for tests that need no other; it ends with the process."""
    server = RankServer()
    atexit.register(server.__exit__)
    return server


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process which may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _serve() -> None:
    """Fork ranks as requests say, until the requests end. What ranks start with `sys.executable` is not forked."""
    sys.executable = sys.argv[1]
    from trainyard.steps.training.engines.deepspeed_engine import import_deepspeed

    import_deepspeed()
    for name in _IMPORTED_BEFORE:
        __import__(name)
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: forking would lose all but one"
    print("[]", flush=True)
    server = os.getpid()
    for line in sys.stdin:
        request = json.loads(line)
        pids = []
        for rank in request["ranks"]:
            pid = os.fork()
            if pid == 0:
                _become_rank(server, request, rank)
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        print(json.dumps([os.waitpid(pid, 0)[1] for pid in pids]), flush=True)


def _become_rank(server: int, request: Mapping[str, Any], rank: Mapping[str, Any]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)  # the server ended before this rank was asked to end
    log = os.open(rank["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(rank["environment"])
    _show_variables()
    time.sleep(rank["delay_seconds"])
    exit_code = 1
    if "PYTHONPATH" in rank["environment"]:  # read by an interpreter that starts, which this one did before
        sys.path[:0] = rank["environment"]["PYTHONPATH"].split(os.pathsep)
    try:
        step, arguments = request["step"], request["arguments"]
        if (TESTS / f"{step}.py").is_file():
            exit_code = importlib.import_module(step).main(*arguments)
        else:
            exit_code = importlib.import_module(f"trainyard.steps.{step}").main(arguments)
    except SystemExit as ended:
        exit_code = int(ended.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        from trainyard.steps.runtime.entrypoint import end_process

        end_process(exit_code)


def _show_variables() -> None:
    """Write a rank's variables to where /proc/PID/environ is read from, as if it had been started with them."""
    begins = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47])
    ((name, space),) = PLACE_FOR_VARIABLES.items()
    place = begins + Path("/proc/self/environ").read_bytes().index(f"{name}={space}".encode())
    text = b"".join(os.fsencode(f"{name}={os.environ[name]}") + b"\0" for name in _SHOWN)
    size = len(name) + 1 + len(space)
    assert len(text) <= size
    ctypes.memmove(place, text.ljust(size, b"\0"), size)


if __name__ == "__main__":
    _serve()
