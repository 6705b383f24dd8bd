"""Processes that work for a step."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from trainyard.steps.runtime.long_work import in_processes

HAND_OUT_WORK_AND_WAIT = """
import time
from trainyard.steps.runtime.long_work import in_processes

for _ in in_processes(abs, range(100), 2, "counted"):
    print("at work", flush=True)
    time.sleep(600)
"""


def test_results_come_in_order() -> None:
    assert list(in_processes(abs, range(-3, 3), 2, "counted")) == [(-3, 3), (-2, 2), (-1, 1), (0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_step_that_started_them(how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", HAND_OUT_WORK_AND_WAIT], stdout=subprocess.PIPE) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == b"at work\n"
        step.send_signal(how)
        step.communicate(timeout=120)  # returns when nobody holds the step's output open any more
    assert step.returncode == -how
