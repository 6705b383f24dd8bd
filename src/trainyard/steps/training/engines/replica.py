"""What engines share that keep the whole model on every rank: they differ in how gradients are summed."""

from __future__ import annotations

import torch

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.steps.training import Training
from trainyard.steps.training.engines.base import Engine, EngineParts
from trainyard.steps.training.engines.blocks import prepare_blocks
from trainyard.steps.training.fragments import Fragment, refuse_other_layouts, replicated_state
from trainyard.steps.training.optimizer import new_optimizer, optimizer_step, require_optimizer
from trainyard.steps.training.precision import LossScale


class ReplicaEngine(Engine):
    """One replica per rank, and an optimizer of its own. A subclass sums the gradients before each step."""

    @classmethod
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """Require the optimizer's package."""
        require_optimizer(settings.optimizer)

    def __init__(self, parts: EngineParts) -> None:
        self.world, settings = parts.world, parts.settings
        self._clip_norm, self._is_compiled = settings.gradient_clip_norm, settings.compile
        self.loss_scale = LossScale(self.world.device, enabled=settings.precision == "fp16")
        self.model = self._replica = parts.new_model().to(self.world.device)
        refuse_other_layouts(self._replica)
        prepare_blocks(self._replica, settings)
        self._optimizer = new_optimizer(self._replica.parameters(), parts.optimizer)
        self._trained = [parameter for parameter in self._replica.parameters() if parameter.requires_grad]

    def step(self, learning_rate: float) -> torch.Tensor:
        """Clip and take the optimizer's step. The gradient is the same on every rank."""
        norm = torch.nn.utils.get_total_norm([p.grad for p in self._trained if p.grad is not None])
        return optimizer_step(
            self._optimizer, self.loss_scale, norm, clip_norm=self._clip_norm, learning_rate=learning_rate
        )

    def evaluation_model(self) -> torch.nn.Module:
        """Return the replica: with nothing around it, a forward pass waits for no one."""
        return self._replica

    def fragments(self) -> list[Fragment]:
        """Return whole tensors: every rank has all of them."""
        return replicated_state(self._replica, self._optimizer)

    def parameter_count(self) -> int:
        """Count the replica's parameters."""
        return sum(parameter.numel() for parameter in self._replica.parameters())

    def whole_model(self) -> torch.nn.Module:
        """Return the replica."""
        return self._replica
