"""Ends what a run has started, also when nobody else can: this file is a script of its own that outlives its runner.

`python guardian.py PREFIX` reads its standard input. The runner holds the other end of that pipe and writes a line
when it ends in order. A runner that is killed writes nothing, the pipe closes, and the guardian then kills every
process whose working folder, as its environment says, lies beneath PREFIX: the ranks, and whatever they started.
Only the standard library is imported, for a quick start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_MARK = "AZUREML_CR_EXECUTION_WORKING_DIR_PATH"
_PROCESSES = Path("/proc")
_ROUNDS = 20
_PAUSE_SECONDS = 0.05


def processes_beneath(folder: Path) -> list[int]:
    """The ids of living processes that were given a working folder beneath `folder`, whoever started them.

    Linux only: elsewhere there is no /proc to look into, the list is empty, and process groups must do.
    """
    mark = f"{_MARK}={folder}{os.sep}".encode()
    found = []
    for entry in _PROCESSES.glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it ended meanwhile, or is another user's
        if any(variable.startswith(mark) for variable in variables):
            found.append(int(entry.name))
    return found


def kill_beneath(folder: Path) -> int:
    """Kill them all; looks again until none is left, for a process may start another while it is looked for.

    Gives how many were killed.
    """
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        found = [pid for pid in processes_beneath(folder) if pid != os.getpid()]
        if not found:
            break
        for pid in found:
            _signal(pid, signal.SIGKILL)
        killed.update(found)
        time.sleep(_PAUSE_SECONDS)
    return len(killed)


def start_guardian(folder: Path) -> subprocess.Popen[bytes]:
    """Start a guardian over a folder of jobs; it lives until `dismiss`, or until the caller dies."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def dismiss(guardian: subprocess.Popen[bytes]) -> None:
    """Tell a guardian that the run ended in order, and wait for it to leave."""
    try:
        guardian.communicate(b"done\n", timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        guardian.kill()
        guardian.wait()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> None:
    """Wait for the runner's line; without one, end what it left behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if not sys.stdin.buffer.read():
        kill_beneath(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
