"""AdamW as every engine builds it and steps with it, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from trainyard.foundation.configs.tasks import TaskSettings
from trainyard.foundation.configs.training import Training
from trainyard.steps.training.precision import LossScale

_LEAST_NORM = 1e-6
"""Added to a norm that is divided by, as torch.nn.utils.clip_grad_norm_ does."""


@dataclass(frozen=True)
class AdamWSettings:
    """What AdamW does apart from the learning rate, which the schedule sets at each step."""

    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    fused: bool = True

    @classmethod
    def of(cls, settings: Training, task: TaskSettings) -> AdamWSettings:
        """As the step and its task say."""
        betas = (task.adam_beta1, task.adam_beta2)
        return cls(settings.weight_decay, betas, task.adam_epsilon, settings.fused_optimizer)


def new_optimizer(parameters: Iterable[torch.nn.Parameter], settings: AdamWSettings) -> torch.optim.AdamW:
    """AdamW with its state, that decays matrices and convolutions and leaves biases, norms and scales alone."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    decaying = [parameter for parameter in trained if parameter.dim() >= 2]
    others = [parameter for parameter in trained if parameter.dim() < 2]
    optimizer = stateless_optimizer(decaying, others, settings)
    for parameter in trained:
        begin_state(optimizer, parameter)
    return optimizer


def stateless_optimizer(
    decaying: list[torch.nn.Parameter], others: list[torch.nn.Parameter], settings: AdamWSettings
) -> torch.optim.AdamW:
    """AdamW before it has state. The learning rate is set at each step."""
    groups: list[dict[str, object]] = [
        {"params": decaying, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=0.0,
        betas=settings.betas,
        eps=settings.epsilon,
        fused=settings.fused,
    )


def begin_state(optimizer: torch.optim.AdamW, parameter: torch.Tensor) -> None:
    """Give a parameter the state that it would have before its first step, so that a checkpoint can be read into it."""
    on_device = parameter.device if optimizer.defaults["fused"] else "cpu"
    optimizer.state[parameter] = {
        "step": torch.zeros((), dtype=torch.float32, device=on_device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }


def gradient_seed(loss_sum: torch.Tensor, factor: float, loss_scale: LossScale) -> torch.Tensor:
    """What the backward pass starts from: the factor, in the loss's scale; not a number for a loss that is not finite.

    So the gradient says by itself, on every rank that has a part of it, that its step must be skipped.
    """
    zero = loss_sum.detach() * 0.0  # not a number where the loss is not finite
    return zero.add_(loss_scale.value * factor if loss_scale.enabled else factor)


def optimizer_step(
    optimizer: torch.optim.AdamW,
    loss_scale: LossScale,
    scaled_norm: torch.Tensor,
    *,
    clip_norm: float,
    learning_rate: float,
) -> torch.Tensor:
    """Clip to the largest allowed norm (0: none), step, and clear the gradient; gives the norm before clipping.

    `scaled_norm` is that of the gradient as it is, with the loss's scale still on it. With a norm that is not finite
    the gradient is cleared only.
    """
    divisor = loss_scale.value.to(scaled_norm.device) if loss_scale.enabled else None
    norm = scaled_norm if divisor is None else scaled_norm / divisor
    if clip_norm > 0:
        clipping = ((norm + _LEAST_NORM) / clip_norm).clamp_(min=1.0)
        divisor = clipping if divisor is None else divisor * clipping
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    if optimizer.defaults["fused"] and norm.device.type != "cpu":
        step_decided_on_device(optimizer, norm, divisor)
    else:
        step_decided_on_host(optimizer, norm, divisor)
    optimizer.zero_grad()
    loss_scale.update(norm)
    return norm


def step_decided_on_device(optimizer: Any, norm: torch.Tensor, divisor: torch.Tensor | None) -> None:
    """Step with the gradient over the divisor, unless the norm is not finite; the fused kernel sees to both.

    So nobody waits for a number to come to the host, and there is no pass over the gradient only to clip it.
    """
    optimizer.grad_scale = divisor
    optimizer.found_inf = (norm - norm).ne_(0.0)  # zero, or not a number: 0 or 1
    optimizer.step()


def step_decided_on_host(optimizer: Any, norm: torch.Tensor, divisor: torch.Tensor | None) -> None:
    """The same where the number is on the host, or the plain implementation is asked for."""
    if not math.isfinite(norm.item()):
        return
    if optimizer.defaults["fused"]:
        optimizer.grad_scale = divisor
    elif divisor is not None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(gradients, divisor)
    optimizer.step()


@dataclass(frozen=True)
class WarmupThenCosine:
    """Rises linearly over the first steps, then falls along half a cosine to zero after the last step."""

    highest: float
    total_steps: int
    warmup_fraction: float

    def __call__(self, step: int) -> float:
        """The learning rate of step `step`, counted from 1."""
        warmup_steps = round(self.warmup_fraction * self.total_steps)
        if step <= warmup_steps:
            return self.highest * step / warmup_steps
        progress = (step - 1 - warmup_steps) / max(1, self.total_steps - warmup_steps)
        return self.highest * 0.5 * (1 + math.cos(math.pi * progress))
