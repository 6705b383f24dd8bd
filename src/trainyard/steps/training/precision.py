"""The precision of the forward pass, and the loss scale of fp16."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from trainyard.steps.runtime.errors import StepError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The floating-point types by the names that settings have for them."""

_INITIAL, _GROWTH, _BACKOFF, _GROWTH_INTERVAL_STEPS = 65536.0, 2.0, 0.5, 2000.0
"""The defaults of torch.amp.GradScaler."""


def set_matmul_precision(precision: str) -> None:
    """Choose how exact products in fp32 are (highest, high, medium): of matrices and, with cuDNN, of convolutions."""
    torch.set_float32_matmul_precision(precision)
    # cuDNN's have a switch of their own, which is on by default.
    torch.backends.cudnn.allow_tf32 = precision != "highest"


class Precision:
    """fp32, or bf16 or fp16 by autocast unless the engine itself casts."""

    def __init__(self, name: str, device: torch.device, *, by_autocast: bool = True) -> None:
        if name == "fp16" and device.type != "cuda":
            raise StepError("--precision fp16 needs a GPU; use bf16 or fp32 on a CPU")
        if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            gpu = torch.cuda.get_device_name(device)
            raise StepError(f"--precision bf16: {gpu} does not support it (Ampere and later do); use fp16 or fp32")
        self.name = name
        self._device_type = device.type
        self._dtype = DTYPES[name] if by_autocast and name != "fp32" else None

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context in which the model computes in this precision."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device_type, dtype=self._dtype)


class LossScale:
    """A factor on the gradient that keeps small numbers representable in fp16, kept on the device; 1 without fp16.

    It is halved by each step whose gradient is not finite, and doubled after 2000 that were. Unlike torch's GradScaler
    it decides by the gradient's norm, which is the same on every rank however the gradient is sharded, and nobody waits
    for the device.
    """

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self.value = torch.tensor(_INITIAL if enabled else 1.0, device=device)
        self._good_steps = torch.zeros((), device=device)

    def update(self, gradient_norm: torch.Tensor) -> None:
        """Adapt the scale after a step."""
        if not self.enabled:
            return
        is_finite = torch.isfinite(gradient_norm.to(self.value.device))
        good_steps = self._good_steps + 1
        grows = good_steps >= _GROWTH_INTERVAL_STEPS
        self.value *= torch.where(is_finite, torch.where(grows, _GROWTH, 1.0), _BACKOFF)
        self._good_steps = torch.where(is_finite & ~grows, good_steps, 0.0)

    def scalars(self) -> dict[str, float]:
        """Return what a checkpoint saves."""
        if not self.enabled:
            return {}
        return {"loss_scale": self.value.item(), "loss_scale_good_steps": self._good_steps.item()}

    def restore(self, scalars: Mapping[str, float]) -> None:
        """Restore what `scalars` returned; initial values where it is missing."""
        if self.enabled:
            self.value.fill_(scalars.get("loss_scale", _INITIAL))
            self._good_steps.fill_(scalars.get("loss_scale_good_steps", 0.0))
