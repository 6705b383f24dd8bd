"""How a step ends without success: with an error that its user can fix, or because it was asked to stop."""

from __future__ import annotations

STOPPED_EXIT_CODE = 75
"""The exit code of a training that was asked to stop and committed a checkpoint: start the same command again.

The number is EX_TEMPFAIL of sysexits.h, a temporary failure.
"""

LOST_EXIT_CODE = 69
"""The exit code of a watched worker whose connection to another rank was lost: EX_UNAVAILABLE of sysexits.h."""
BUG_EXIT_CODE, DEVICE_EXIT_CODE, MEMORY_EXIT_CODE = 70, 71, 79
"""Those of one that an unexpected exception ended, with a fault of its device or too little memory as special cases.

The first two are EX_SOFTWARE and EX_OSERR of sysexits.h, whose numbers end at 78. Without a watcher all are 1.
"""
_DEVICE_FAULTS = (
    "uncorrectable",
    "hardware stack error",
    "busy or unavailable",
    "Invalid access of peer GPU memory",
    "system not yet initialized",
)
"""In messages of CUDA's errors for which another start may help: cudaError_t in the documentation of its runtime. Not
among them are failed assertions and illegal addresses, which are mistakes in code that happen again."""


class StepError(ValueError):
    """A mistake in what the step was given, or in the machine beneath it. A step reports it in one line, which says
    how to fix it, without a traceback."""

    exit_code = 1


class LostConnection(StepError):
    """Another rank is gone, or does not answer: this one is not to blame."""


class SetupError(StepError):
    """What a step runs in is not what it needs: a package is missing, or launchers contradict each other."""

    exit_code = 2


def exit_code_of(failure: BaseException) -> int:
    """Return the exit code of a watched worker that an unexpected exception ends."""
    if isinstance(failure, MemoryError) or "OutOfMemoryError" in (base.__name__ for base in type(failure).__mro__):
        return MEMORY_EXIT_CODE
    is_fault = isinstance(failure, RuntimeError) and any(words in str(failure) for words in _DEVICE_FAULTS)
    return DEVICE_EXIT_CODE if is_fault else BUG_EXIT_CODE


def first_line(failure: BaseException) -> str:
    """Return the first line of an error's message that is not empty; its type where there is none."""
    return next((line for line in str(failure).splitlines() if line.strip()), type(failure).__name__)
