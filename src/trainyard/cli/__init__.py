"""The command line: one file per verb, with its flags, its help and what it joins."""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False  # as `typing` has it, whose import takes 5 ms, in which Ctrl-C could not be answered
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit, as `entry.main` does; Ctrl-C is answered in one line from here on, also while it loads."""
    try:
        from trainyard.lint.processors import keeping_everything

        with keeping_everything():
            from trainyard.cli import entry

        entry.main(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted\n")
        sys.exit(130)
    except SystemExit as ending:
        import threading
        from contextlib import suppress

        # Freeing object by object takes 5 % of a short command; Python does it where threads or the output need it.
        if arguments is None and isinstance(ending.code, int) and threading.active_count() == 1:
            atexit._run_exitfuncs()
            with suppress(AttributeError, OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(ending.code)
        raise
