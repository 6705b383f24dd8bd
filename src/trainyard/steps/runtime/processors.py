"""What this process may use of its machine, and how much memory it has taken."""

from __future__ import annotations

import os
import resource
import sys


def usable_processors() -> int:
    """Return the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_resident_bytes() -> int:
    """Return the most main memory that this process has held since it started."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kibibytes on Linux: getrusage(2)
