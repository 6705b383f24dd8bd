"""The learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainyard.settings.steps.train_tensorflow import TrainTensorFlow
from trainyard.settings.steps.training import Training

_SHAPES: Mapping[str, Callable[[float, float], float]] = {
    "cosine": lambda progress, decay: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress, decay: 1 - progress,
    "constant": lambda progress, decay: 1.0,
    # Source: MiniCPM (arXiv 2404.06395, section 4.2), with a linear decay.
    "warmup_stable_decay": lambda progress, decay: min(1.0, (1 - progress) / decay) if decay > 0 else 1.0,
}
"""From 1 down to 0 over the progress 0 to 1 after the warmup, of which the last `decay` is for falling."""


@dataclass(frozen=True)
class Schedule:
    """A learning rate that rises linearly over the first steps, then follows a shape down to its minimum.

    A pure function of the step: there is nothing to save or restore.
    """

    highest: float
    total_steps: int
    warmup_fraction: float
    shape: str = "cosine"
    minimum_fraction: float = 0.0
    """Of the highest."""
    decay_fraction: float = 0.1
    """Of all steps."""
    warmup_steps: int | None = None
    decay_steps: int | None = None
    """In place of the fractions."""

    @classmethod
    def of(cls, settings: Training | TrainTensorFlow, total_steps: int) -> Schedule:
        """Return the schedule of a step's settings."""
        return cls(
            settings.learning_rate,
            total_steps,
            settings.warmup_fraction,
            settings.learning_rate_schedule,
            settings.minimum_learning_rate_fraction,
            settings.decay_fraction,
            settings.warmup_steps,
            settings.decay_steps,
        )

    def __call__(self, step: int) -> float:
        """Return the learning rate of step `step`, counted from 1."""
        warmup_steps = self.warmup_steps
        if warmup_steps is None:
            warmup_steps = round(self.warmup_fraction * self.total_steps)
        if step <= warmup_steps:
            return self.highest * step / warmup_steps
        steps_after = max(1, self.total_steps - warmup_steps)
        progress = (step - 1 - warmup_steps) / steps_after
        lowest = self.highest * self.minimum_fraction
        decay_steps = self.decay_fraction * self.total_steps if self.decay_steps is None else self.decay_steps
        height = _SHAPES[self.shape](progress, decay_steps / steps_after)
        return lowest + (self.highest - lowest) * height
