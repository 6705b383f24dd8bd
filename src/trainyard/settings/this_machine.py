"""This machine: its processors, and what its programs print."""

from __future__ import annotations

import os
import shutil
import subprocess


def available_processors() -> int:
    """Return how many processors this process may use, respecting containers and `taskset` where the system can."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def output_of(program: str, *arguments: str) -> str:
    """Return what a program prints; nothing if it is missing, fails or hangs."""
    command = [shutil.which(program) or program, *arguments]  # may import: not trainyard
    try:
        finished = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return finished.stdout if finished.returncode == 0 else ""
