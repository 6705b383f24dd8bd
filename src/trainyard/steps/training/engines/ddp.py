"""DistributedDataParallel: the whole model on every rank, gradients summed during the backward pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainyard.settings.steps.training import TrainDDP
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.engines.engine import EngineParts, ReplicaEngine

_UNFINISHED = "Expected to have finished reduction in the prior iteration"
"""DDP's error, one step later, about a parameter that it waited for."""


class DDPEngine(ReplicaEngine):
    """One replica per rank; DDP sums gradients while the backward pass still runs."""

    name = "ddp"

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        # Torch warns of every depthwise convolution, where only the strides of dimensions of size one differ.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        settings = parts.settings
        self._sums_in_bf16 = isinstance(settings, TrainDDP) and settings.reduce_precision == "bf16"
        self.model = self._ddp = self._wrapped()

    @contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """No exchange of gradients before the step's last micro-batch."""
        with nullcontext() if is_last else self._ddp.no_sync():
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
        uninterrupted one. In evaluation mode, so that no running statistics change.
        """
        # A compiled model must be compiled for its micro-batches, not for a single sample.
        with torch.compiler.set_stance("force_eager") if self._is_compiled else nullcontext():
            self._ddp.eval()
            with self._ddp.no_sync():
                loss().backward()
            if any(parameter.grad is None for parameter in self._trained):
                self._optimizer.zero_grad()
                self.model = self._ddp = self._wrapped(find_unused_parameters=True)
            if self.world.size > 2:
                loss().backward()
            self._optimizer.zero_grad()
            self._ddp.train()

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
