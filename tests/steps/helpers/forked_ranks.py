"""Ranks that start in a moment: forked from a process that has imported torch but runs nothing yet.

What a test of hundreds of restarts needs. Each rank is a real process with its own memory, process group and end, as
`rank_processes` starts them; only the seconds of importing are spared.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rank_processes import LIMIT_SECONDS, clean_environment, free_port, rank_variables

_IMPORTED_BEFORE = (
    "safetensors.torch",
    "tiny_task",
    "torch._dynamo",
    "torch.distributed._functional_collectives",
    "trainyard.steps.training.engines.ddp",
    "trainyard.steps.training.engines.deepspeed.engine",
    "trainyard.steps.training.engines.fsdp",
    "trainyard.steps.training.run",
)
"""What every training imports eventually."""
_IMPORTED_FOR_ADAPTERS = (
    "peft",
    "trainyard.steps.training.tasks.language_modeling",
    "transformers.models.llama.modeling_llama",
)
_WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""DeepSpeed imports mlflow, which imports pyarrow, which starts a thread; none of it is needed."""
_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that a process gets when its parent dies."""


class RankServer:
    """Starts steps as forked ranks, one step at a time. A context manager: nothing outlives it."""

    def __init__(
        self, *, with_deepspeed: bool = False, with_lightning: bool = False, with_adapters: bool = False
    ) -> None:
        more = {
            "with_deepspeed": with_deepspeed,
            "with_lightning": with_lightning,
            "with_adapters": with_adapters,
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, *(name for name, is_needed in more.items() if is_needed)],
            env=clean_environment(_WITHOUT_THREADS),
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
        port = free_port()
        ranks = [{**(environment or {}), **rank_variables(rank, world_size, port)} for rank in range(world_size)]
        self._send(
            {"step": step, "arguments": [str(argument) for argument in arguments], "ranks": ranks, "log": str(log)}
        )
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


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process which may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _serve(*, with_deepspeed: bool, with_lightning: bool, with_adapters: bool) -> None:
    """Fork ranks as requests say, until the requests end."""
    for name in _IMPORTED_BEFORE:
        __import__(name)
    if with_deepspeed:
        from trainyard.steps.training.engines.deepspeed.start import import_deepspeed

        import_deepspeed()
    if with_lightning:
        __import__("trainyard.steps.training.lightning.run")
    if with_adapters:
        for name in _IMPORTED_FOR_ADAPTERS:
            __import__(name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: forking would lose all but one"
    print("[]", flush=True)
    server = os.getpid()
    for line in sys.stdin:
        request = json.loads(line)
        pids = []
        for variables in request["ranks"]:
            pid = os.fork()
            if pid == 0:
                _become_rank(server, request, variables)
            pids.append(pid)
        print(json.dumps(pids), flush=True)
        print(json.dumps([os.waitpid(pid, 0)[1] for pid in pids]), flush=True)


def _become_rank(server: int, request: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)  # the server ended before this rank was asked to end
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(variables)
    exit_code = 1
    try:
        step = __import__(f"trainyard.steps.{request['step']}", fromlist=["main"])
        exit_code = step.main(request["arguments"])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        from trainyard.steps.runtime.entrypoint import end_process

        end_process(exit_code)


if __name__ == "__main__":
    _serve(
        with_deepspeed="with_deepspeed" in sys.argv,
        with_lightning="with_lightning" in sys.argv,
        with_adapters="with_adapters" in sys.argv,
    )
