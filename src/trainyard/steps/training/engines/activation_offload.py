"""What a layer keeps for its backward pass, moved to main memory until then."""

from __future__ import annotations

from typing import NamedTuple

import torch

_LEAST_BYTES = 1024
"""A smaller tensor is not worth a copy."""


class _Kept(NamedTuple):
    """A tensor in main memory, and where it came from."""

    values: torch.Tensor
    device: torch.device


def activations_in_main_memory() -> torch.autograd.graph.saved_tensors_hooks:
    """Return a context for a forward pass, as torch.autograd.graph.save_on_cpu, without the weights.

    Weights stay where they are in any case. Copies are queued on the device, from and to pinned memory, so the host
    does not wait; they keep the tensor's layout, and the backward pass computes the same bits.
    """
    return torch.autograd.graph.saved_tensors_hooks(_keep, _bring_back)


def _keep(tensor: torch.Tensor) -> torch.Tensor | _Kept:
    is_weight = isinstance(tensor._base if tensor._is_view() else tensor, torch.nn.Parameter)
    if is_weight or tensor.nbytes < _LEAST_BYTES:
        return tensor
    values = torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda", requires_grad=False)
    values.copy_(tensor, non_blocking=True)
    return _Kept(values, tensor.device)


def _bring_back(kept: torch.Tensor | _Kept) -> torch.Tensor:
    if isinstance(kept, _Kept):
        return kept.values.to(kept.device, non_blocking=True)
    return kept
