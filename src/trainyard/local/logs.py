"""The names of processes' logs, and their last lines."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TAIL_BYTES = 1 << 16
# Escape sequences of terminals, and control characters other than the line feed and tab.
_NOT_TEXT = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")


def log_name(rank: int, processes: int) -> str:
    """Return Azure ML's name: std_log.txt for one process, else std_log_process_<rank>.txt, padded to equal length."""
    if processes == 1:
        return "std_log.txt"
    return f"std_log_process_{rank:0{len(str(processes))}d}.txt"


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines that are not blank, as plain text; of a progress bar, its last state."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    plain = (_NOT_TEXT.sub("", line).rstrip() for line in lines)
    return [line for line in plain if line][-count:]
