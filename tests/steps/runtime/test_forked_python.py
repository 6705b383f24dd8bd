"""The server that the tests fork Pythons from ends with the process that has started it, however that ends."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import forked_python
import pytest

HOLDS = """
import sys, time
from pathlib import Path
from forked_python import ForkedPython

with ForkedPython(Path(sys.argv[1]), modules=()) as server:
    print(server.python, flush=True)
    time.sleep(600)
"""
SLEEPS = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_nothing_outlives_who_started_the_server(tmp_path: Path, end: str) -> None:
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    helpers = Path(forked_python.__file__).parent
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, tmp_path], cwd=helpers, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    python = holder.stdout.readline().strip()
    job = subprocess.Popen([python, tmp_path / "sleeps.py"], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    assert job.stdout.readline() == "started\n"
    getattr(holder, end)()
    holder.communicate(timeout=60)  # to the end of its error output, which the server and the job have open too
    assert job.stdout.read() == ""
    assert job.wait(timeout=60) != 0


def test_the_server_goes_on_when_a_client_is_killed_before_it_has_asked(tmp_path: Path) -> None:
    with forked_python.ForkedPython(tmp_path, modules=()) as server:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "socket"))
        assert subprocess.run([server.python, "-m", "site"], stdout=subprocess.DEVNULL).returncode == 0
