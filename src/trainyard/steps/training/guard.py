"""When steps stop making sense."""

from __future__ import annotations

from trainyard.steps.errors import StepError


class NonfiniteGuard:
    """Counts skipped steps; a row of them means that going on cannot help. The same on every rank."""

    def __init__(self, limit: int, skipped_steps: int) -> None:
        self.skipped_steps = skipped_steps
        self._limit = limit
        self._in_a_row = 0

    def observe(self, step_number: int, *, is_finite: bool) -> None:
        """Count a step. StepError after `limit` skipped ones in a row."""
        self._in_a_row = 0 if is_finite else self._in_a_row + 1
        self.skipped_steps += not is_finite
        if self._in_a_row == self._limit:
            raise StepError(
                f"the last {self._limit} steps, up to step {step_number}, had a loss or gradient that is not finite; "
                "the checkpoints from before are kept. A lower --learning-rate or another --precision may help."
            )
