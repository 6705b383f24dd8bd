"""What the training loop asks of an engine. The loop does not know which one it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch


class Engine(ABC):
    """Holds the model and its optimizer, wrapped as one way of sharing them among ranks needs it."""

    name: str
    model: torch.nn.Module
    """The wrapped model: what a task's loss calls."""

    @abstractmethod
    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[object]:
        """A context for one forward and backward pass; gradients are exchanged in the last one of a step."""

    @abstractmethod
    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Do what the engine otherwise does in its first step only, so that every attempt computes the same bits."""

    @abstractmethod
    def backward(self, loss_sum: torch.Tensor, step_samples: int) -> None:
        """Add this rank's part of the gradient of the step's mean loss: the sum over its samples / the step's count."""

    @abstractmethod
    def gradient_norm(self) -> float:
        """The norm of the whole gradient, the same on every rank, before clipping. Call once per step."""

    @abstractmethod
    def step(self, learning_rate: float) -> None:
        """Clip, take the optimizer's step, and clear the gradient."""

    @abstractmethod
    def skip_step(self) -> None:
        """Clear a gradient that is not finite, and leave the model as it is."""

    @abstractmethod
    def align_ranks(self) -> None:
        """Make buffers that ranks keep for themselves (such as BatchNorm's) the same, before evaluating or saving."""

    @abstractmethod
    def evaluation_model(self) -> torch.nn.Module:
        """The model to evaluate with, on any number of batches, whatever the other ranks do meanwhile."""

    @abstractmethod
    def save(self, folder: Path) -> list[Path]:
        """Write this rank's part of model and optimizer into a checkpoint's folder; gives the files written."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Read model and optimizer from a checkpoint's folder."""

    @abstractmethod
    def whole_model(self) -> torch.nn.Module:
        """The unwrapped model with all its weights, to be saved by rank 0. Every rank calls it."""
