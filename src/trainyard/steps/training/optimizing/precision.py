"""What the forward pass computes in."""

from __future__ import annotations

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
