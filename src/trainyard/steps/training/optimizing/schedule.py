"""The learning rate as a pure function of the step: nothing to save, nothing to restore."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class WarmupThenCosine:
    """Rises linearly over the first steps, then falls along half a cosine to zero after the last step."""

    highest: float
    total_steps: int
    warmup_fraction: float

    def __call__(self, step: int) -> float:
        """The learning rate of step `step`, counted from 1."""
        warmup_steps = round(self.warmup_fraction * self.total_steps)
        if step <= warmup_steps:
            return self.highest * step / warmup_steps
        progress = (step - 1 - warmup_steps) / max(1, self.total_steps - warmup_steps)
        return self.highest * 0.5 * (1 + math.cos(math.pi * progress))
