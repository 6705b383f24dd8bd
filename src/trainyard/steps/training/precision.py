"""What the forward pass computes in, and the scale that losses have in fp16."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from trainyard.steps.runtime.errors import StepError

_AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, or bf16 or fp16 by autocast, unless the engine itself sees to what the model computes in."""

    def __init__(self, name: str, device: torch.device, *, by_autocast: bool = True) -> None:
        if name == "fp16" and device.type != "cuda":
            raise StepError("--precision fp16 needs a GPU; bf16 and fp32 also run on a CPU")
        if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            gpu = torch.cuda.get_device_name(device)
            raise StepError(f"--precision bf16 is not what {gpu} computes in (Ampere and later do); fp16 and fp32 are")
        self.name = name
        self._device_type = device.type
        self._dtype = _AUTOCAST_TYPES.get(name) if by_autocast else None

    def autocast(self) -> AbstractContextManager[object]:
        """A context in which the model computes in this precision."""
        return nullcontext() if self._dtype is None else torch.autocast(self._device_type, dtype=self._dtype)


_INITIAL, _GROWTH, _BACKOFF, _GROWTH_INTERVAL_STEPS = 65536.0, 2.0, 0.5, 2000.0
"""As torch.amp.GradScaler has them."""


class LossScale:
    """A factor on the gradient that keeps fp16 from losing small numbers; one where it is not needed.

    As large as it can be: halved by each step whose gradient is not finite, doubled after 2000 that were. Unlike
    torch's GradScaler it takes the gradient's norm for its verdict, which is the same on every rank however the
    gradient is spread over them, and nobody waits for the device.
    """

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self.value = torch.tensor(_INITIAL if enabled else 1.0, device=device)
        self._good_steps = torch.zeros((), device=device)

    def update(self, gradient_norm: torch.Tensor) -> None:
        """Draw the conclusion from a step."""
        if not self.enabled:
            return
        is_finite = torch.isfinite(gradient_norm.to(self.value.device))
        good_steps = self._good_steps + 1
        grows = good_steps >= _GROWTH_INTERVAL_STEPS
        self.value *= torch.where(is_finite, torch.where(grows, _GROWTH, 1.0), _BACKOFF)
        self._good_steps = torch.where(is_finite & ~grows, good_steps, 0.0)

    def scalars(self) -> dict[str, float]:
        """What a checkpoint keeps of it."""
        if not self.enabled:
            return {}
        return {"loss_scale": self.value.item(), "loss_scale_good_steps": self._good_steps.item()}

    def restore(self, scalars: Mapping[str, float]) -> None:
        """Take what `scalars` gave; as new where it is missing, or fp16 is not what is computed in."""
        if self.enabled:
            self.value.fill_(scalars.get("loss_scale", _INITIAL))
            self._good_steps.fill_(scalars.get("loss_scale_good_steps", 0.0))
