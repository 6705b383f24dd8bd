"""The interface of an engine, which is all that the training loop knows of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.steps.training import Training
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.fragments import MODEL_KEY, Fragment, MovingAverage
from trainyard.steps.training.optimizer import OptimizerSettings, gradient_seed
from trainyard.steps.training.precision import LossScale


@dataclass(frozen=True)
class EngineParts:
    """What an engine is built from."""

    new_model: Callable[[], torch.nn.Module]
    """Builds the model; its weights depend on torch's seed, which is already set."""
    settings: Training
    optimizer: OptimizerSettings
    batch: BatchArithmetic
    world: World
    still_at_work: Callable[[], None] = lambda: None
    """Called about once a second, on every rank, while rank 0 builds a model for all."""


def refuse_adapters_and_optimizers(settings: Training, why_no_adapters: str | None, why: str) -> None:
    """StepError for adapters, if there is a reason, and for an optimizer other than AdamW."""
    if settings.tuning != "full" and why_no_adapters is not None:
        raise StepError(f"--tuning {settings.tuning} does not work with {why_no_adapters}; use train_ddp or train_fsdp")
    if settings.optimizer != "adamw":
        raise StepError(f"--optimizer {settings.optimizer} does not work with {why}; use train_ddp, or adamw")


class Engine(ABC):
    """Holds the model and its optimizer, wrapped for one way of sharing them among ranks."""

    name: str
    world: World
    loss_scale: LossScale
    model: torch.nn.Module
    """The wrapped model: what a task's loss calls."""
    parameter_count: int
    """Of the model, over all ranks: counted before any were sharded."""

    forwards_in_lockstep = False
    """Whether all ranks must make equally many forward passes, also when evaluating. Known once built."""

    frozen_are_state = True
    """Whether weights that are not trained belong to the state. Not if they are a base model's, which is read again."""

    replica: torch.nn.Module | None = None
    """The model itself, unwrapped, where every rank has all of it."""

    replicas: dist.ProcessGroup | None = None
    """The ranks that hold copies of what this one holds, in their order, where only some ranks do."""

    average: MovingAverage | None = None
    """Of the trained weights, if the settings ask for one. It is what is evaluated, and saved as the model."""

    variables: tuple[str, ...] = ()
    """Of the environment, which the engine sets. A step that follows in the process finds them as they were."""

    uses_autocast = True
    """Whether torch.autocast chooses the precision of the forward pass. Else the engine itself casts."""

    @classmethod  # noqa: B027 (most have nothing to check)
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """StepError names what is known to be wrong before ranks meet and anything is allocated."""

    @abstractmethod
    def __init__(self, parts: EngineParts) -> None:
        """Build and wrap the model, and its optimizer with its state, so that `fragments` is complete."""

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Return a context for one forward and backward pass; gradients are exchanged in the last one of a step."""
        return nullcontext()

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:  # noqa: B027 (most need nothing)
        """Do what the engine would otherwise do in its first step, so that every attempt computes the same bits."""

    def backward(self, loss_sum: torch.Tensor, step_terms: torch.Tensor | float) -> None:
        """Add this rank's part of the gradient of the step's mean loss: its sum of losses / the step's number of terms.

        If the sum is not finite, neither is the gradient, nor the step's norm on any rank. By default for a model that
        averages gradients over ranks: an exact mean needs their sum.
        """
        loss_sum.backward(gradient_seed(loss_sum, self.world.size / step_terms, self.loss_scale))

    @abstractmethod
    def step(self, learning_rate: float) -> torch.Tensor:
        """Clip the gradient, take the optimizer's step, and clear the gradient.

        Return the gradient's global norm before clipping, the same on every rank, as a tensor on the device. No rank
        waits for its device here, except where DeepSpeed (ZeRO 1 to 3) or an optimizer in main memory reads the norm
        on the host, and where Horovod sums gradients. If the norm is not finite, parameters and optimizer state stay
        unchanged.
        """

    def align_ranks(self) -> None:
        """Copy the buffers of rank 0 (such as BatchNorm's) to every rank, before evaluating or saving."""
        for buffer in self.model.buffers():
            values = buffer.to(self.world.device)  # Lightning leaves the model in main memory, which NCCL cannot read
            dist.broadcast(values, src=0)
            buffer.copy_(values)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """A context in which the model has the averaged weights, if there is an average. Every rank enters it."""
        if self.average is None:
            yield
            return
        self.average.swap()
        self.fragments_restored()
        try:
            yield
        finally:
            self.average.swap()
        # Not after an error, which may be this rank's alone: ranks may have to exchange what they derive.
        self.fragments_restored()

    def evaluation_model(self) -> torch.nn.Module:
        """Return the model to evaluate with; see `forwards_in_lockstep` for how often ranks may call it."""
        return self.model

    @abstractmethod
    def fragments(self) -> list[Fragment]:
        """Return everything that this rank holds: parameters, buffers, optimizer state."""

    def weights(self) -> list[Fragment]:
        """Return the parameters, and the buffers that are saved, as this rank holds them. Every rank calls it."""
        return [fragment for fragment in self.fragments() if fragment.key.startswith(MODEL_KEY)]

    def state(self) -> list[Fragment]:
        """Return what a checkpoint holds: the fragments, without a base model's frozen weights, and the average."""
        own = [fragment for fragment in self.fragments() if self.frozen_are_state or not fragment.is_frozen]
        return own if self.average is None else [*own, *self.average.fragments()]

    def prepare_to_restore(self, folder: Path, files: list[str]) -> None:  # noqa: B027 (most have the same always)
        """Make `fragments` fit what the files of a checkpoint hold, if that differs from one to the next."""

    def fragments_restored(self) -> None:  # noqa: B027 (most keep nothing derived from them)
        """Update what is derived from the fragments, after their values were read from a checkpoint."""

    def scalars(self) -> dict[str, float]:
        """Return state that is single numbers, such as fp16's loss scale; the same on every rank."""
        return self.loss_scale.scalars()

    def restore_scalars(self, scalars: Mapping[str, float]) -> None:
        """Restore what `scalars` returned; initial values where it is missing."""
        self.loss_scale.restore(scalars)
