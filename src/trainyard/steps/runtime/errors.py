"""How a step ends without success: with an error that its user can fix, or because it was asked to stop."""

from __future__ import annotations

STOPPED_EXIT_CODE = 75
"""The exit code of a training that was asked to stop and committed a checkpoint: start the same command again.

The number is EX_TEMPFAIL of sysexits.h, a temporary failure.
"""

LOST_EXIT_CODE = 69
"""The exit code of a watched worker whose connection to another rank was lost: EX_UNAVAILABLE of sysexits.h."""


class StepError(ValueError):
    """A mistake in what the step was given, or in the machine beneath it. A step reports it in one line, which says
    how to fix it, without a traceback."""

    exit_code = 1


class LostConnection(StepError):
    """Another rank is gone, or does not answer: this one is not to blame."""


class SetupError(StepError):
    """What a step runs in is not what it needs: a package is missing, or launchers contradict each other."""

    exit_code = 2


def first_line(failure: BaseException) -> str:
    """Return the first line of an error's message; its type where it has none."""
    return next(iter(str(failure).splitlines()), "") or type(failure).__name__
