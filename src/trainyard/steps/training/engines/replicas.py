"""Engines with a whole replica of the model on each rank: one process, and DistributedDataParallel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.steps.training import TrainDDP, Training, TrainSingle
from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.runtime.imports import from_extra, require_packages
from trainyard.steps.training.engines.blocks import prepare_blocks
from trainyard.steps.training.engines.engine import Engine, EngineParts
from trainyard.steps.training.fragments import Fragment, refuse_other_layouts, replicated_state
from trainyard.steps.training.optimizer import gradient_norm, new_optimizer, optimizer_step
from trainyard.steps.training.precision import LossScale

_UNFINISHED = "Expected to have finished reduction in the prior iteration"
"""DDP's error, one step later, about a parameter that it waited for."""


class ReplicaEngine(Engine):
    """One replica per rank, and an optimizer of its own. A subclass sums the gradients before each step."""

    @classmethod
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """SetupError if the optimizer's package is not installed."""
        if settings.optimizer == "adamw8bit":
            require_packages("--optimizer adamw8bit", from_extra("torchao"), "torchao")

    def __init__(self, parts: EngineParts) -> None:
        self.world, settings = parts.world, parts.settings
        self._clip_norm, self._is_compiled = settings.gradient_clip_norm, settings.compile
        self.loss_scale = LossScale(self.world.device, enabled=settings.precision == "fp16")
        self.model = self.replica = self._replica = parts.new_model().to(self.world.device)
        self.parameter_count = sum(parameter.numel() for parameter in self._replica.parameters())
        self._trained = [parameter for parameter in self._replica.parameters() if parameter.requires_grad]
        if not self.prepares_model():
            return
        refuse_other_layouts(self._replica)
        prepare_blocks(self._replica, settings)
        self.optimizer = new_optimizer(self._replica.parameters(), parts.optimizer)

    def prepares_model(self) -> bool:
        """Return whether the model has no optimizer of its own, and is computed as the settings say."""
        return True

    def find_unused_parameters(self, loss: Callable[[], torch.Tensor]) -> bool:
        """Return whether a backward pass leaves parameters without a gradient.

        In evaluation mode, so that no running statistics change. A compiled model must be compiled for its
        micro-batches, not for a single sample.
        """
        with torch.compiler.set_stance("force_eager") if self._is_compiled else nullcontext():
            self.model.eval()
            loss().backward()
        found = any(parameter.grad is None for parameter in self._trained)
        self.optimizer.zero_grad()
        self.model.train()
        return found

    def step(self, learning_rate: float) -> torch.Tensor:
        """Clip and take the optimizer's step. The gradient is the same on every rank."""
        norm = gradient_norm(self._trained)
        return optimizer_step(
            self.optimizer, self.loss_scale, norm, clip_norm=self._clip_norm, learning_rate=learning_rate
        )

    def evaluation_model(self) -> torch.nn.Module:
        """Return the replica: with nothing around it, a forward pass waits for no one."""
        return self._replica

    def fragments(self) -> list[Fragment]:
        """Return whole tensors: every rank has all of them."""
        return replicated_state(self._replica, self.optimizer)


class SingleEngine(ReplicaEngine):
    """The model itself. DataParallel copies it to every GPU in each forward pass, and runs a thread for each."""

    name = "single"

    @classmethod
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """Refuse several processes, and what DataParallel's copies cannot have."""
        super().check(settings, batch)
        if batch.world_size > 1:
            raise SetupError(
                f"train_single is one process, and {batch.world_size} were started; use train_ddp, or start one"
            )
        for name in ("activation_checkpointing", "activation_offload", "compile"):
            if _is_data_parallel(settings) and getattr(settings, name):
                flag = name.replace("_", "-")
                raise StepError(f"--data-parallel does not work with --{flag}; use train_ddp, or leave one out")

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        if _is_data_parallel(parts.settings) and torch.cuda.device_count() > 1:
            self.model = torch.nn.DataParallel(self._replica)
            parts.world.log(f"DataParallel on {torch.cuda.device_count()} GPUs")


def _is_data_parallel(settings: Training) -> bool:
    return isinstance(settings, TrainSingle) and settings.data_parallel


class DDPEngine(ReplicaEngine):
    """One replica per rank; gradients are summed while the backward pass still runs."""

    name = "ddp"

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        # Torch warns of every depthwise convolution, where only the strides of dimensions of size one differ.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        settings = parts.settings
        self._sums_in_bf16 = isinstance(settings, TrainDDP) and settings.reduce_precision == "bf16"
        self._ddp: DistributedDataParallel | None = None
        if self.world.size > 1:  # alone, DDP's buckets would keep the gradient between steps, and divide it by 1
            self.model = self._ddp = self._wrapped()

    @contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """No exchange of gradients before the step's last micro-batch."""
        with nullcontext() if is_last or self._ddp is None else self._ddp.no_sync():
            try:
                yield
            except RuntimeError as failure:
                if _UNFINISHED not in str(failure):
                    raise
                raise StepError(
                    "some parameters did not contribute to the loss of the last step, though all contribute to that of "
                    "the first sample; let every loss depend on every parameter, or use train_fsdp"
                ) from None

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Find out whether there are parameters without a gradient, and let DDP choose its gradient buckets.

        DDP searches each step for parameters without a gradient, which takes time, only if there are some. It chooses
        its buckets after the first backward pass, and they decide in which order the numbers of three or more ranks are
        added. Chosen before the first step of every attempt, they make a resumed training add in the same order as an
        uninterrupted one.
        """
        if self._ddp is None:
            return
        with self._ddp.no_sync():
            are_unused = self.find_unused_parameters(loss)
        if are_unused:
            self.model = self._ddp = self._wrapped(find_unused_parameters=True)
        if self.world.size > 2:
            self.find_unused_parameters(loss)

    def _wrapped(self, *, find_unused_parameters: bool = False) -> DistributedDataParallel:
        ddp = DistributedDataParallel(
            self._replica,
            device_ids=[self.world.device.index] if self.world.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=find_unused_parameters,
        )
        if self._sums_in_bf16:
            # A lambda, because torch takes no annotations that are texts.
            ddp.register_comm_hook(None, lambda state, bucket: _mean_in_bf16(bucket))
        return ddp


def _mean_in_bf16(bucket: Any) -> Any:
    """Return a bucket's mean over ranks, exchanged in bf16. Torch's own hook refuses to run on a CPU."""
    gradients = bucket.buffer()
    exchanged = gradients.to(torch.bfloat16).div_(dist.get_world_size())
    work = dist.all_reduce(exchanged, async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: gradients.copy_(done.value()[0]))
