"""When a step begins and ends on its device, without waiting for that device."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from trainyard.steps.training.agreed_step import StepTimes

Mark = float | torch.cuda.Event
"""A moment: on the host's clock, or an event in a GPU's stream of work."""


@dataclass(frozen=True)
class StepMarks:
    """The moments of one step."""

    begun: Mark
    forward_ended: Mark
    ended: Mark

    def times(self) -> StepTimes:
        """Return the times between the marks. On a GPU, only after the device has passed them."""
        return StepTimes(_seconds_between(self.begun, self.ended), _seconds_between(self.begun, self.forward_ended))


class StepClock:
    """Marks moments: with the host's clock on a CPU, with events on a GPU, where the host runs ahead."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._begun = self._forward_ended = self.now()

    def now(self) -> Mark:
        """Return a mark of this moment on the device."""
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def resume(self) -> None:
        """Let the next step begin now: start-up, evaluation or a checkpoint before it do not count."""
        self._begun = self.now()

    def forward_ends(self) -> None:
        """Mark the end of a forward pass; the last one of a step counts."""
        self._forward_ended = self.now()

    def step_ends(self) -> StepMarks:
        """Mark the end of a step, which is the beginning of the next. Return its marks."""
        marks = StepMarks(self._begun, self._forward_ended, self.now())
        self._begun = marks.ended
        return marks


def _seconds_between(first: Mark, second: Mark) -> float:
    if isinstance(first, torch.cuda.Event):
        assert isinstance(second, torch.cuda.Event)
        return float(first.elapsed_time(second)) / 1000
    assert isinstance(second, float)
    return second - first
