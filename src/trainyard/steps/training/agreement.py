"""What all ranks agree on after each backward pass, in one small reduction: the loss, and whether to go on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from trainyard.steps.training.world import World


@dataclass(frozen=True)
class Agreement:
    """The same on every rank."""

    loss: float
    is_finite: bool
    stop: bool


def agree(world: World, loss_sum: torch.Tensor, samples: int, gradient_norm: float, stop: bool) -> Agreement:
    """Reduce one step's numbers. `loss_sum` is this rank's sum of losses, `samples` the step's count over all ranks."""
    local = torch.tensor([0.0, not math.isfinite(gradient_norm), stop], dtype=torch.float64, device=world.device)
    local[0] = loss_sum
    total_loss, nonfinite_ranks, stopping_ranks = world.sum(local).tolist()
    return Agreement(
        loss=total_loss / samples,
        is_finite=math.isfinite(total_loss) and nonfinite_ranks == 0,
        stop=stopping_ranks > 0,
    )
