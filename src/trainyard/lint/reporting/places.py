"""How the files of findings are named, and how text from files is made safe to print."""

from __future__ import annotations

import os
import re
from pathlib import Path

# Control characters, and those that reorder what follows them (bidirectional overrides and isolates).
_UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def file_name(file: Path, relative_to: Path) -> str:
    """A file's name seen from a folder; with more than two steps upwards, the full name is clearer."""
    try:
        relative = os.path.relpath(file, relative_to)
    except ValueError:
        return str(file)
    return str(file) if relative.startswith(os.path.join("..", "..", "..")) else relative


def relative_name(file: Path, relative_to: Path) -> str:
    """A file's name seen from a folder, however far it is, with `/`: what programs join with that folder."""
    return Path(os.path.relpath(file, relative_to)).as_posix()


def printable(text: str) -> str:
    """A text with what would steer a terminal written out: `\\x1b` for an escape. Tabs stay."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
