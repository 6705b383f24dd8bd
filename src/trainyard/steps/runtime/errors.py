"""What a user can mend: the one kind of error that a step reports in a line instead of with a traceback."""

from __future__ import annotations


class StepError(ValueError):
    """A mistake in what the step was given, or in the machine beneath it; the message says what would be right."""
