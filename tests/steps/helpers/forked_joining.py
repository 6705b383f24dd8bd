"""Ranks of `joining` that one process forks: one is killed before the other begins.

As `python -m forked_joining KILLED PORT SECONDS [SECONDS_UNTIL_AGAIN]`; exit code of the other one. With a last
argument the killed one is a minute old by then, and its rank begins again that much later.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from joining import Joining, join
from rank_processes import rank_variables

from trainyard.steps.runtime.entrypoint import end_process, run_step

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h: the signal that a process gets when its parent dies."""


def fork_rank(rank: int, port: int, seconds: str, output: int = 1) -> int:
    """Start a rank. Nothing in /proc shows which one it is."""
    return os.fork() or be_rank(rank, port, seconds, output)


def be_rank(rank: int, port: int, seconds: str, output: int) -> NoReturn:
    """Join the other rank, and end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(output, 1)
    os.environ.update(rank_variables(rank, 2, port))
    end_process(run_step(Joining, "joining", join, ["--timeout-seconds", seconds]))


def main(killed: int, port: int, seconds: str, seconds_until_again: float = 0.0) -> int:
    """Return the exit code of the rank that is not killed."""
    reading, writing = os.pipe()
    first = fork_rank(killed, port, seconds, writing)
    with open(reading) as said:
        assert said.readline() == "waiting to import torch\n"
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    if seconds_until_again:
        (file,) = Path(tempfile.gettempdir()).glob("trainyard-joining-*/*")
        os.utime(file, (time.time() - 60, time.time() - 60))
    other = fork_rank(1 - killed, port, seconds)
    if seconds_until_again:
        time.sleep(seconds_until_again)
        fork_rank(killed, port, seconds)
    return os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *map(float, sys.argv[4:])))
