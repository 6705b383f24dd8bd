"""The last lines of a log as plain text: terminals' escape sequences are removed."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

_TAIL_BYTES = 1 << 16
# Escape sequences of terminals, and control characters other than the line feed and tab.
_NOT_TEXT = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def plain_text(text: str) -> str:
    """Return text without escape sequences and control characters; of a progress bar's line, its last state."""
    lines = (line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))
    return "\n".join(_NOT_TEXT.sub("", line) for line in lines)


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines that are not blank, as plain text; none of a log that cannot be read."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    # From the end, because most lines of a long log are not wanted.
    found = (stripped for line in reversed(text.split("\n")) if (stripped := plain_text(line).rstrip()))
    return list(islice(found, count))[::-1]
