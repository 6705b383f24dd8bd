"""What the forward pass computes in."""

from __future__ import annotations

import torch

from trainyard.steps.errors import StepError

_AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """fp32, or autocast to bf16 or fp16; with fp16, a scale on the loss that keeps small gradients from vanishing."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "fp16" and device.type != "cuda":
            raise StepError("--precision fp16 needs a GPU; bf16 and fp32 also run on a CPU")
        if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
            gpu = torch.cuda.get_device_name(device)
            raise StepError(f"--precision bf16 is not what {gpu} computes in (Ampere and later do); fp16 and fp32 are")
        self.name = name
        self._device_type = device.type
        self._dtype = _AUTOCAST_TYPES.get(name)
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> torch.autocast:
        """A context in which the model computes in this precision."""
        return torch.autocast(self._device_type, dtype=self._dtype, enabled=self._dtype is not None)
