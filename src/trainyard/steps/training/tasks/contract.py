"""What a task of one's own must give, checked where it first gives it: a wrong value would fail far from its cause."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trainyard.steps.runtime.errors import StepError


def require_loss(loss: object) -> torch.Tensor:
    """The loss of a batch. StepError when it is nothing that can be minimised."""
    if not isinstance(loss, torch.Tensor):
        problem = f"a {type(loss).__name__}"
    elif loss.ndim:
        problem = f"a tensor of the shape {list(loss.shape)}"
    elif not loss.requires_grad:
        problem = "a tensor that does not depend on the model's weights"
    else:
        return loss
    raise StepError(
        f"the task's loss() gave {problem}; it gives a tensor of one number computed by the model: the sum of the "
        "samples' losses"
    )


def require_sums(measured: object) -> Mapping[str, torch.Tensor]:
    """What a task measured of a batch. StepError when it cannot be added up."""
    if not isinstance(measured, Mapping):
        raise StepError(f"the task's measure() gave a {type(measured).__name__}; it gives a tensor for each name")
    for name, value in measured.items():
        if not isinstance(value, torch.Tensor):
            raise StepError(f"the task's measure() gave a {type(value).__name__} for {name!r}, where a tensor belongs")
    if "samples" not in measured:
        raise StepError(
            f"the task's measure() gave {', '.join(measured) or 'nothing'} without 'samples', the number of samples"
        )
    return measured
