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

    settings: Training | TrainTensorFlow
    total_steps: int

    def __call__(self, step: int) -> float:
        """Return the learning rate of step `step`, counted from 1."""
        settings, highest = self.settings, self.settings.learning_rate
        warmup_steps = settings.warmup_steps
        if warmup_steps is None:
            warmup_steps = round(settings.warmup_fraction * self.total_steps)
        if step <= warmup_steps:
            return highest * step / warmup_steps
        steps_after = max(1, self.total_steps - warmup_steps)
        progress = (step - 1 - warmup_steps) / steps_after
        lowest = highest * settings.minimum_learning_rate_fraction
        decay_steps: float | None = settings.decay_steps
        if decay_steps is None:
            decay_steps = settings.decay_fraction * self.total_steps
        height = _SHAPES[settings.learning_rate_schedule](progress, decay_steps / steps_after)
        return lowest + (highest - lowest) * height
