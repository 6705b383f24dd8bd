"""Ends the processes of a run even if its runner is killed: this file is also a script, which outlives the runner.

`python guardian.py PREFIX [ENGINE LABEL]` reads its standard input. The runner holds the other end of that pipe and
writes a line when it ends normally. If the runner is killed, the pipe closes without a line, and the guardian kills
every process whose working folder, according to its environment, lies beneath PREFIX: the ranks, and whatever they
started. It has the ENGINE remove all containers with the LABEL. Only the standard library is imported, for a quick
start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_MARK = "AZUREML_CR_EXECUTION_WORKING_DIR_PATH"
_PROCESSES = Path("/proc")
_ROUNDS = 20
_PAUSE_SECONDS = 0.05


def processes_beneath(folder: Path) -> list[int]:
    """Return the ids of running processes with a working folder beneath `folder`, whoever started them.

    On Linux only: without /proc the list is empty, and only process groups are ended.
    """
    # Not with psutil, which takes several times as long, at the end of every job; and the guardian must start without
    # the packages of the runner's Python.
    mark = f"\0{_MARK}={folder}{os.sep}".encode()
    try:
        pids = [int(name) for name in os.listdir(_PROCESSES) if name.isdigit()]
    except OSError:
        return []
    # As one text: a machine has hundreds of processes, and each may have hundreds of variables.
    return [pid for pid in pids if mark in environment_of(pid)]


def environment_of(pid: int) -> bytes:
    """Return a process's variables as it started, each NAME=VALUE between zeros; empty if it is another's or over."""
    try:
        with open(f"{_PROCESSES}/{pid}/environ", "rb", buffering=0) as file:
            return b"\0" + file.readall()
    except OSError:
        return b""


def kill_beneath(folder: Path) -> int:
    """Kill all of them, and return how many.

    The search is repeated until none is left, because a process may start another one meanwhile.
    """
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = [pid for pid in processes_beneath(folder) if pid != os.getpid()]
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        time.sleep(_PAUSE_SECONDS)
    return len(killed)


def remove_containers(engine: str, label: str) -> None:
    """Kill and remove all containers with a label; the search is repeated, because one may be starting meanwhile."""
    for _ in range(_ROUNDS):
        listed = subprocess.run(
            [engine, "ps", "--all", "--quiet", "--filter", f"label={label}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if not listed.stdout.split():
            break
        subprocess.run([engine, "rm", "--force", *listed.stdout.split()], capture_output=True, check=False)


class Guardian:
    """The guardian of a run's folder, as its runner sees it: a run that starts no process has none.

    `containers` are an engine's program and the label of the run's containers, if it has any.
    """

    def __init__(self, folder: Path, containers: tuple[str, str] | None = None) -> None:
        self._folder = folder
        self._containers = containers
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it before the run's first process; it runs until `dismiss`, or until the caller dies."""
        with self._starting:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__, str(self._folder), *(self._containers or ())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )

    def dismiss(self) -> None:
        """Tell it that the run ended normally, and wait for it to end."""
        if self._process is None:
            return
        try:
            self._process.communicate(b"done\n", timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Wait for the runner's line; without one, kill what the runner left running."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not sys.stdin.buffer.read():
        kill_beneath(Path(sys.argv[1]))
        if len(sys.argv) > 2:
            remove_containers(*sys.argv[2:])


if __name__ == "__main__":
    main()
