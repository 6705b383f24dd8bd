"""The optimizers, as every engine builds one and steps with it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from trainyard.settings.steps.tasks import TaskSettings
from trainyard.settings.steps.training import LEAST_NORM, Training
from trainyard.steps.training.precision import LossScale


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer and its settings without the learning rate, which the schedule sets at each step."""

    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    fused: bool = True
    name: str = "adamw"

    @classmethod
    def of(cls, settings: Training, task: TaskSettings) -> OptimizerSettings:
        """Return the settings of a step and its task."""
        betas = (task.adam_beta1, task.adam_beta2)
        return cls(settings.weight_decay, betas, task.adam_epsilon, settings.fused_optimizer, settings.optimizer)


def new_optimizer(parameters: Iterable[torch.nn.Parameter], settings: OptimizerSettings) -> torch.optim.Optimizer:
    """Return an optimizer with its state. Weight decay applies to matrices and convolutions, not biases and norms."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    decaying = [parameter for parameter in trained if parameter.dim() >= 2]
    others = [parameter for parameter in trained if parameter.dim() < 2]
    optimizer = stateless_optimizer(decaying, others, settings)
    for parameter in trained:
        begin_state(optimizer, parameter, settings)
    return optimizer


def stateless_optimizer(
    decaying: list[torch.nn.Parameter], others: list[torch.nn.Parameter], settings: OptimizerSettings
) -> torch.optim.Optimizer:
    """Return an optimizer without state. The learning rate is set at each step."""
    decays: list[dict[str, Any]] = [
        {"params": decaying, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in decays if group["params"]]
    if settings.name == "adafactor":
        # Parameter by parameter: foreach would hold an estimate of every parameter at once, as large as what is saved.
        return torch.optim.Adafactor(groups, lr=0.0, foreach=False)
    if settings.name == "adamw8bit":
        from torchao.optim import AdamW8bit

        optimizer: torch.optim.Optimizer = AdamW8bit(groups, lr=0.0, betas=settings.betas, eps=settings.epsilon)
        return optimizer
    return torch.optim.AdamW(groups, lr=0.0, betas=settings.betas, eps=settings.epsilon, fused=settings.fused)


def begin_state(optimizer: Any, parameter: torch.Tensor, settings: OptimizerSettings) -> None:
    """Create the state that a parameter would have before its first step, so that a checkpoint can be read into it."""
    step, values = torch.zeros((), dtype=torch.float32), parameter.detach()
    if settings.name == "adamw8bit":
        state = {
            "step": step,
            "exp_avg": optimizer._new_buffer(values, True),
            "exp_avg_sq": optimizer._new_buffer(values, False),
        }
    elif settings.name == "adafactor" and values.dim() < 2:
        state = {"step": step, "variance": torch.zeros_like(values)}
    elif settings.name == "adafactor":
        state = {
            "step": step,
            "row_var": torch.zeros_like(values[..., :1]),
            "col_var": torch.zeros_like(values[..., :1, :]),
        }
    else:
        state = {
            "step": step.to(values.device) if settings.fused else step,
            "exp_avg": torch.zeros_like(values),
            "exp_avg_sq": torch.zeros_like(values),
        }
    optimizer.state[parameter] = state


def gradient_seed(loss_sum: torch.Tensor, factor: torch.Tensor | float, loss_scale: LossScale) -> torch.Tensor:
    """Return the gradient that the backward pass starts from: the scaled factor, or NaN for a loss that is not finite.

    Thus the gradient itself shows, on every rank that has a part of it, that its step must be skipped.
    """
    if isinstance(factor, torch.Tensor):
        factor = factor.to(loss_sum.dtype)  # as a number is rounded
    scaled = loss_scale.value * factor if loss_scale.enabled else factor
    return torch.rsub(loss_sum.detach(), scaled, alpha=0.0)  # scaled - 0 * loss, in one operation


def gradient_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all gradients together: that of torch's `get_total_norm`, which first sorts them by kind."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if len({gradient.dtype for gradient in gradients}) != 1:
        return torch.nn.utils.get_total_norm(gradients)
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def optimizer_step(
    optimizer: torch.optim.Optimizer,
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
        clipping = ((norm + LEAST_NORM) / clip_norm).clamp_(min=1.0)
        divisor = clipping if divisor is None else divisor * clipping
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):  # torchao would compile its step again for another number
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate
    if optimizer.defaults.get("fused") and norm.device.type != "cpu":
        step_decided_on_device(optimizer, norm, divisor)
    else:
        step_decided_on_host(optimizer, norm, divisor)
    for group in optimizer.param_groups:  # what zero_grad does, which takes several times as long
        for parameter in group["params"]:
            parameter.grad = None
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
    if optimizer.defaults.get("fused"):
        optimizer.grad_scale = divisor
        optimizer.step()
        return
    if divisor is not None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_div_(gradients, divisor)
    # torchao compiles its step for a GPU; for a CPU that takes minutes and gains little.
    with torch.compiler.set_stance("force_eager") if norm.device.type == "cpu" else nullcontext():
        optimizer.step()
