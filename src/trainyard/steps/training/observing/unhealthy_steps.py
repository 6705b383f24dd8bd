"""Steps that make no sense: not finite, or loss spikes. The same on every rank, since it follows from the agreement."""

from __future__ import annotations

from collections import deque

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.agreed_step import AgreedStep

_MEAN_OVER_STEPS = 50
_STEPS_BEFORE_WARNING = 10
"""The first losses of a training fall too fast for their mean to be meaningful."""


class NonfiniteGuard:
    """Counts skipped steps; too many in a row end the training."""

    def __init__(self, limit: int, skipped_steps: int) -> None:
        self.skipped_steps = skipped_steps
        self._limit = limit
        self._in_a_row = 0

    def observe(self, agreed: AgreedStep) -> None:
        """Count a step. StepError after `limit` skipped ones in a row."""
        self._in_a_row = 0 if agreed.is_finite else self._in_a_row + 1
        self.skipped_steps += not agreed.is_finite
        if self._in_a_row == self._limit:
            raise StepError(
                f"the last {self._limit} steps, up to step {agreed.step.number}, had a loss or gradient that is not "
                "finite; earlier checkpoints are kept. Try a lower --learning-rate or another --precision"
            )


class LossSpikes:
    """Notices losses far above the mean of those before; `count` starts with this attempt."""

    def __init__(self, factor: float) -> None:
        self.count = 0
        self._factor = factor
        self._losses: deque[float] = deque(maxlen=_MEAN_OVER_STEPS)

    def observe(self, agreed: AgreedStep) -> str | None:
        """Return a warning if the step's loss is a spike."""
        if not agreed.is_finite:
            return None
        steps = len(self._losses)
        mean = sum(self._losses) / max(1, steps)
        # Spikes count in the mean, so that a plateau is not warned about forever.
        self._losses.append(agreed.loss)
        if steps < _STEPS_BEFORE_WARNING or not 0 < mean * self._factor < agreed.loss:
            return None
        self.count += 1
        return (
            f"loss spike: {agreed.loss:.4g} at step {agreed.step.number} is {agreed.loss / mean:.1f} times the mean of "
            f"the last {steps} steps (--loss-spike-factor {self._factor:g})"
        )
