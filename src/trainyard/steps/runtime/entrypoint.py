"""How every step starts and ends: flags in, exit code out, and no traceback for what a user can mend."""

from __future__ import annotations

import atexit
import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeVar

from trainyard.foundation.os_errors import describe_os_error
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.flags import Value, parse_flags, parse_task_flags

Config = TypeVar("Config")

_USER_OS_ERRORS = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EEXIST,
        errno.EFBIG,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
"""What goes wrong in the file system around a step: a full disk, a read-only output, a path that cannot be."""


def run_step(
    config_class: type[Config], program: str, body: Callable[[Config], int], arguments: Sequence[str] | None = None
) -> int:
    """Parse the flags, run the step, return its exit code.

    0: done; 1: wrong values, or a step that failed; 2: wrong flags (by SystemExit, before anything heavy is
    imported); 75: stopped on request, to be continued. Unexpected exceptions pass through with their traceback.
    """
    config = parse_flags(config_class, program, arguments)
    return _run(program, lambda: body(config))


def run_task_step(
    config_class: type[Config],
    program: str,
    body: Callable[[Config, Mapping[str, Value]], int],
    arguments: Sequence[str] | None = None,
) -> int:
    """As `run_step`, for a step that has a task: the body also gets the task's settings that were given, by name."""
    config, task_settings = parse_task_flags(config_class, program, arguments)
    return _run(program, lambda: body(config, task_settings))


def _run(program: str, body: Callable[[], int]) -> int:
    try:
        return body()
    except StepError as mistake:
        return _report(program, str(mistake))
    except OSError as failure:
        if failure.errno not in _USER_OS_ERRORS:
            raise
        return _report(program, describe_os_error(failure))
    except KeyboardInterrupt:
        return _report(program, "interrupted", exit_code=130)


def end_process(exit_code: int) -> NoReturn:
    """End the process at once, after what was registered for its end has run and all output is written.

    Tearing down an interpreter in which torch's threads still live aborts now and then ("terminate called without
    an active exception"): a training that was done would count as failed. By now every file is closed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _report(program: str, message: str, exit_code: int = 1) -> int:
    sys.stdout.flush()
    print(f"{program}: error: {message}", file=sys.stderr, flush=True)
    return exit_code
