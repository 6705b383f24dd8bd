"""What the training loop asks of an engine. The loop does not know which one it has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainyard.foundation.batch_arithmetic import BatchArithmetic
from trainyard.foundation.configs.training import Training
from trainyard.steps.runtime.world import World
from trainyard.steps.training.fragments import Fragment
from trainyard.steps.training.optimizer import AdamWSettings


@dataclass(frozen=True)
class EngineParts:
    """What an engine is made of."""

    new_model: Callable[[], torch.nn.Module]
    """Builds the model; its weights follow from torch's seed, which is set already."""
    settings: Training
    optimizer: AdamWSettings
    batch: BatchArithmetic
    world: World


class Engine(ABC):
    """Holds the model and its optimizer, wrapped as one way of sharing them among ranks needs it."""

    name: str
    model: torch.nn.Module
    """The wrapped model: what a task's loss calls."""

    forwards_in_lockstep = False
    """Whether every rank must make as many forward passes as the others, also when evaluating. Known once built."""

    uses_autocast = True
    """Whether torch.autocast chooses what the forward pass computes in. Else the engine itself sees to it."""

    @classmethod  # noqa: B027 (most have nothing to check)
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """What can be known to be wrong before ranks meet and anything is allocated. StepError names it."""

    @abstractmethod
    def __init__(self, parts: EngineParts) -> None:
        """Build and wrap the model, and its optimizer with its state, so that `fragments` is complete."""

    @abstractmethod
    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[object]:
        """A context for one forward and backward pass; gradients are exchanged in the last one of a step."""

    @abstractmethod
    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Do what the engine otherwise does in its first step only, so that every attempt computes the same bits."""

    @abstractmethod
    def backward(self, loss_sum: torch.Tensor, step_terms: float) -> None:
        """Add this rank's part of the gradient of the step's mean loss: its sum of losses / the step's count of terms.

        A sum that is not finite makes the whole gradient so, and thereby the step's norm on every rank.
        """

    @abstractmethod
    def step(self, learning_rate: float) -> torch.Tensor:
        """Clip the gradient, take the optimizer's step, and clear the gradient.

        Gives the gradient's global norm before clipping, the same on every rank, as a tensor on the device. No rank
        waits for its device here, except where DeepSpeed (ZeRO 1 to 3) or an optimizer in main memory reads the norm
        on the host. When the norm is not finite, parameters and optimizer are left as they were.
        """

    def align_ranks(self) -> None:
        """Give every rank the buffers of rank 0 (such as BatchNorm's), before evaluating or saving."""
        for buffer in self.model.buffers():
            dist.broadcast(buffer, src=0)

    @abstractmethod
    def evaluation_model(self) -> torch.nn.Module:
        """The model to evaluate with; see `forwards_in_lockstep` for how often ranks may call it."""

    @abstractmethod
    def fragments(self) -> list[Fragment]:
        """All state that a checkpoint needs, as this rank holds it: parameters, buffers, optimizer state."""

    def fragments_restored(self) -> None:  # noqa: B027 (most keep nothing that follows from them)
        """Called once after the fragments' values were written from a checkpoint."""

    def scalars(self) -> dict[str, float]:
        """State that is single numbers, such as the scale of fp16's losses; the same on every rank."""
        return {}

    def restore_scalars(self, scalars: Mapping[str, float]) -> None:  # noqa: B027 (most engines have none)
        """Restore what `scalars` gave; names that are missing keep their value."""

    @abstractmethod
    def parameter_count(self) -> int:
        """The model's parameters, over all ranks."""

    @abstractmethod
    def whole_model(self) -> torch.nn.Module:
        """The unwrapped model with all its weights, to be saved by rank 0 (elsewhere it may be empty).

        Every rank calls it.
        """
