"""How every step starts and ends: flags in, exit code out, and no traceback for what a user can fix."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn, TypeVar

from trainyard.settings.files import describe_os_error
from trainyard.settings.steps.training import Training
from trainyard.steps.runtime.errors import USER_OS_ERRORS, StepError, exit_code_of
from trainyard.steps.runtime.flags import GivenSettings, parse_flags, parse_task_flags
from trainyard.steps.runtime.rank_variables import watch_siblings
from trainyard.steps.runtime.watcher import end_with_watcher, is_worker, own_command, run_watched

Config = TypeVar("Config")
Main = Callable[..., int]
"""Takes the flags, or those of the command line if there are none, and returns the exit code."""


def run_step(
    config_class: type[Config], program: str, body: Callable[[Config], int], arguments: Sequence[str] | None = None
) -> int:
    """Parse the flags and run the step. Return its exit code.

    0: done; 1: invalid values, or the step failed; 2: wrong flags or settings (by SystemExit, before anything heavy is
    imported) or a setup that cannot work; 75: stopped on request, can be resumed. Unexpected exceptions propagate with
    their traceback.
    """
    watch_siblings()  # before torch is imported, which takes seconds
    config = parse_flags(config_class, program, arguments)
    return _run(program, lambda: body(config))


def run_task_step(
    config_class: type[Config],
    program: str,
    body: Callable[[GivenSettings[Config]], int],
    arguments: Sequence[str] | None = None,
) -> int:
    """Do as `run_step` for a step with a task or a settings file: the body also gets the task's settings, and origins.

    A training that asks for restarts runs in a process of its own, which this one watches.
    """
    siblings = watch_siblings()  # before the task's module is imported, which may import torch
    given = parse_task_flags(config_class, program, arguments)
    config = given.step
    if isinstance(config, Training) and config.restarts > 0 and not is_worker():
        siblings.close()
        return _run(program, lambda: _run_watched(config, own_command(program, arguments)))
    if is_worker():
        end_with_watcher()
    return _run(program, lambda: body(given))


def as_step(config_class: type[Config], program: str) -> Callable[[Callable[[Config], int]], Main]:
    """Make what works with a step's settings the `main` of its module, as by `run_step`."""
    return lambda body: partial(run_step, config_class, program, body)


def as_task_step(config_class: type[Config], program: str) -> Callable[[Callable[[GivenSettings[Config]], int]], Main]:
    """Make what works with the settings of a step and its task the `main` of its module, as by `run_task_step`."""
    return lambda body: partial(run_task_step, config_class, program, body)


def _run_watched(config: Training, command: Sequence[str]) -> int:
    if config.resume == "never":
        raise StepError("--restarts would start over each time with --resume never; give an empty --checkpoints")
    return run_watched(command, config.restarts, config.process_group_timeout_seconds)


def _run(program: str, body: Callable[[], int]) -> int:
    try:
        return body()
    except StepError as error:
        return _report(program, str(error), (is_worker() and error.watched_exit_code) or error.exit_code)
    except OSError as failure:
        if failure.errno not in USER_OS_ERRORS:
            raise
        return _report(program, describe_os_error(failure))
    except KeyboardInterrupt:
        return _report(program, "interrupted", exit_code=130)


def run_and_end(main: Callable[[], int]) -> NoReturn:
    """Run a step, and end its process with one exit code for each kind of failure, whatever threads are still alive.

    An unexpected exception is printed with its traceback; its exit code is 1, or tells this step's watcher its kind.
    """
    try:
        exit_code = main()
    except Exception as failure:
        sys.stdout.flush()
        traceback.print_exc()
        exit_code = exit_code_of(failure) if is_worker() else 1
    end_process(exit_code)


def end_process(exit_code: int) -> NoReturn:
    """End the process at once, after its exit handlers have run and all output is flushed.

    Finalizing an interpreter in which torch's threads are still alive sometimes aborts ("terminate called without an
    active exception"), and a completed training would count as failed. By now every file is closed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _report(program: str, message: str, exit_code: int = 1) -> int:
    sys.stdout.flush()
    print(f"{program}: error: {message}", file=sys.stderr, flush=True)
    return exit_code
