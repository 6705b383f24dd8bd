"""AdamW as every engine builds it and steps with it, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
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
    """The settings of AdamW without the learning rate, which the schedule sets at each step."""

    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    fused: bool = True

    @classmethod
    def of(cls, settings: Training, task: TaskSettings) -> AdamWSettings:
        """Return the settings of a step and its task."""
        betas = (task.adam_beta1, task.adam_beta2)
        return cls(settings.weight_decay, betas, task.adam_epsilon, settings.fused_optimizer)


def new_optimizer(parameters: Iterable[torch.nn.Parameter], settings: AdamWSettings) -> torch.optim.AdamW:
    """Return AdamW with its state. Weight decay applies to matrices and convolutions, not to biases and norms."""
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
    """Return AdamW without state. The learning rate is set at each step."""
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
    """Create the state that a parameter would have before its first step, so that a checkpoint can be read into it."""
    on_device = parameter.device if optimizer.defaults["fused"] else "cpu"
    optimizer.state[parameter] = {
        "step": torch.zeros((), dtype=torch.float32, device=on_device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }


def gradient_seed(loss_sum: torch.Tensor, factor: float, loss_scale: LossScale) -> torch.Tensor:
    """Return the gradient that the backward pass starts from: the scaled factor, or NaN for a loss that is not finite.

    Thus the gradient itself shows, on every rank that has a part of it, that its step must be skipped.
    """
    zero = loss_sum.detach() * 0.0  # NaN where the loss is not finite
    return zero.add_(loss_scale.value * factor if loss_scale.enabled else factor)


def optimizer_step(
    optimizer: torch.optim.AdamW,
    loss_scale: LossScale,
    scaled_norm: torch.Tensor,
    *,
    clip_norm: float,
    learning_rate: float,
) -> torch.Tensor:
    """Clip to the largest allowed norm (0: none), step, and clear the gradient. Return the norm before clipping.

    `scaled_norm` is the norm of the gradient as it is, still with the loss scale. If it is not finite, the gradient is
    only cleared.
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
    """Step with the gradient divided by the divisor, unless the norm is not finite; the fused kernel does both.

    So nobody waits for a number to reach the host, and there is no extra pass over the gradient to clip it.
    """
    optimizer.grad_scale = divisor
    optimizer.found_inf = (norm - norm).ne_(0.0)  # zero or NaN: 0 or 1
    optimizer.step()


def step_decided_on_host(optimizer: Any, norm: torch.Tensor, divisor: torch.Tensor | None) -> None:
    """Do the same where the number is on the host, or without the fused implementation."""
    if not math.isfinite(norm.item()):
        return
    if optimizer.defaults["fused"]:
        optimizer.grad_scale = divisor
    elif divisor is not None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(gradients, divisor)
    optimizer.step()


_SHAPES: Mapping[str, Callable[[float, float], float]] = {
    "cosine": lambda progress, decay: 0.5 * (1 + math.cos(math.pi * progress)),
    "linear": lambda progress, decay: 1 - progress,
    "constant": lambda progress, decay: 1.0,
    # Source: MiniCPM (arXiv 2404.06395, section 4.2), with a linear decay.
    "warmup_stable_decay": lambda progress, decay: min(1.0, (1 - progress) / decay) if decay > 0 else 1.0,
}
"""From 1 down to 0 over the progress 0 to 1 after the warmup, of which the last `decay` is for falling."""


@dataclass(frozen=True)
class Schedule:
    """A learning rate that rises linearly over the first steps, then follows a shape down to its minimum.

    A pure function of the step: there is nothing to save or restore.
    """

    highest: float
    total_steps: int
    warmup_fraction: float
    shape: str = "cosine"
    minimum_fraction: float = 0.0
    """Of the highest."""
    decay_fraction: float = 0.1
    """Of all steps."""

    @classmethod
    def of(cls, settings: Training, total_steps: int) -> Schedule:
        """Return the schedule of a step's settings."""
        return cls(
            settings.learning_rate,
            total_steps,
            settings.warmup_fraction,
            settings.learning_rate_schedule,
            settings.minimum_learning_rate_fraction,
            settings.decay_fraction,
        )

    def __call__(self, step: int) -> float:
        """Return the learning rate of step `step`, counted from 1."""
        warmup_steps = round(self.warmup_fraction * self.total_steps)
        if step <= warmup_steps:
            return self.highest * step / warmup_steps
        steps_after = max(1, self.total_steps - warmup_steps)
        progress = (step - 1 - warmup_steps) / steps_after
        lowest = self.highest * self.minimum_fraction
        height = _SHAPES[self.shape](progress, self.decay_fraction * self.total_steps / steps_after)
        return lowest + (self.highest - lowest) * height
