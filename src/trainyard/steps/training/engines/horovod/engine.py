"""Horovod: gradients are summed by Horovod's own thread, over MPI, gloo or NCCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch

from trainyard.steps.training.engines.base import EngineParts
from trainyard.steps.training.engines.horovod.buckets import GradientExchange
from trainyard.steps.training.engines.horovod.start import start_horovod
from trainyard.steps.training.engines.replica import ReplicaEngine
from trainyard.steps.training.optimizer import gradient_seed


class HorovodEngine(ReplicaEngine):
    """One replica per rank. Sums of gradients are asked for explicitly, so that micro-batches need none."""

    name = "horovod"

    def __init__(self, parts: EngineParts) -> None:
        horovod = start_horovod(parts.world)
        super().__init__(parts)
        horovod.broadcast_parameters(self._replica.state_dict(), root_rank=0)
        self._exchange = GradientExchange(horovod, self._trained)
        self._some_are_unused = False

    @contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Sum gradients over ranks in the step's last micro-batch only."""
        self._exchange.is_open = is_last
        try:
            yield
        finally:
            self._exchange.is_open = False

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Find out whether there are parameters without a gradient. In evaluation mode, as DDP's warm-up."""
        with torch.compiler.set_stance("force_eager") if self._is_compiled else nullcontext():
            self._replica.eval()
            loss().backward()
        self._some_are_unused = any(parameter.grad is None for parameter in self._trained)
        self._optimizer.zero_grad()
        self._replica.train()

    def backward(self, loss_sum: torch.Tensor, step_terms: float) -> None:
        """Add this rank's part of the gradient. Ranks' parts are summed, so each is of the whole step's mean."""
        loss_sum.backward(gradient_seed(loss_sum, 1 / step_terms, self.loss_scale))

    def step(self, learning_rate: float) -> torch.Tensor:
        """Wait for the sums, clip, and step with AdamW."""
        unused = self._unused_everywhere() if self._some_are_unused else []
        self._exchange.finish()
        for parameter in unused:
            parameter.grad = None
        return super().step(learning_rate)

    def _unused_everywhere(self) -> list[torch.nn.Parameter]:
        """Return the parameters to which no rank has a gradient: as with DDP, they are not updated at all."""
        has_gradient = torch.tensor([float(parameter.grad is not None) for parameter in self._trained])
        counts = self.world.sum(has_gradient).tolist()
        return [parameter for parameter, count in zip(self._trained, counts, strict=True) if count == 0]
