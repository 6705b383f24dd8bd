"""An exponential moving average of the trained weights, held as the engine holds the weights: whole, or in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from trainyard.steps.training.fragments import AVERAGE_KEY, MODEL_KEY, OPTIMIZER_KEY, Fragment


class MovingAverage:
    """The average of what this rank holds of the weights. Nothing is exchanged: averaging is element-wise."""

    def __init__(self, state: Sequence[Fragment], decay: float) -> None:
        self._decay = decay
        trained = {fragment.key.split("/")[1] for fragment in state if fragment.key.startswith(OPTIMIZER_KEY)}
        self._weights = [
            fragment
            for fragment in state
            if fragment.key.startswith(MODEL_KEY) and fragment.key.removeprefix(MODEL_KEY) in trained
        ]
        self._average = [fragment.values.clone() for fragment in self._weights]

    @torch.no_grad()
    def update(self, step_number: int) -> None:
        """Move the average towards the weights, after step `step_number`, counted from 1.

        At first the decay is smaller, (1 + step) / (10 + step), so that the initial weights are soon forgotten: as
        `num_updates` of TensorFlow's tf.train.ExponentialMovingAverage.
        """
        decay = min(self._decay, (1 + step_number) / (10 + step_number))
        torch._foreach_lerp_(self._average, [fragment.values for fragment in self._weights], 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange average and weights. Twice leaves all bits as they were."""
        for fragment, average in zip(self._weights, self._average, strict=True):
            weights = fragment.values.clone()
            fragment.values.copy_(average)
            average.copy_(weights)

    def fragments(self) -> list[Fragment]:
        """Return the average for checkpoints, divided as the weights are."""
        return [
            replace(fragment, key=AVERAGE_KEY + fragment.key.removeprefix(MODEL_KEY), values=average)
            for fragment, average in zip(self._weights, self._average, strict=True)
        ]
