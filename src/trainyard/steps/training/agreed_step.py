"""A step as all ranks know it, which records and guards look at; nothing here needs a framework."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainyard.steps.training.samples.plan import Step


@dataclass(frozen=True)
class StepTimes:
    """How long a step took one rank."""

    seconds: float
    """From the end of the step before (or of what came between, such as an evaluation) to the end of this one."""
    own_seconds: float
    """From the same beginning to the end of the last forward pass: waiting for data and computing, before gradients are
    exchanged and a rank waits for the slowest. Engines that gather parameters in the forward pass wait there too."""


@dataclass(frozen=True)
class AgreedStep:
    """A step as all ranks know it; all but `times` is the same on every rank."""

    step: Step
    learning_rate: float
    loss: float
    gradient_norm: float
    stop: bool
    """Whether any rank had been asked to stop when it had taken this step."""
    rank_own_seconds: list[float]
    """By rank, `StepTimes.own_seconds` of the last step whose times that rank knew; 0 before there is one."""
    times: StepTimes
    """This rank's."""

    @property
    def is_finite(self) -> bool:
        """Whether the step was taken. The engine skips it, on every rank, when the norm is not finite."""
        return math.isfinite(self.gradient_norm)
