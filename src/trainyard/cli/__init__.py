"""The command line: one file per verb, with its flags, its help and what it joins."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as `typing` has it, whose import takes 5 ms, in which Ctrl-C could not be answered
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit, as `entry.main` does; Ctrl-C is answered in one line from here on, also while it loads."""
    try:
        from trainyard.cli import entry

        entry.main(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
