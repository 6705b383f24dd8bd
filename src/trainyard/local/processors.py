"""How many processors this machine gives a run."""

from __future__ import annotations

import os


def available_processors() -> int:
    """The processors that this process may use: what a container or `taskset` allows, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
