"""How much memory the ranks took, in words."""

from __future__ import annotations

import torch

from trainyard.steps.runtime.world import World

_GIB = 2**30


def memory_summary(world: World) -> str:
    """Return the highest peak of all ranks in words. Every rank calls it."""
    device = world.device
    reserved_bytes = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
    peaks = world.gather((world.peak_memory_bytes(), reserved_bytes))
    peak_bytes, reserved_bytes = max(peaks)
    rank = peaks.index((peak_bytes, reserved_bytes))
    text = f"peak memory {peak_bytes / _GIB:.2f} GiB on rank {rank}, the highest of all"
    if device.type != "cuda":
        return text
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return f"{text}; {reserved_bytes / _GIB:.2f} GiB reserved, of {total_bytes / _GIB:.0f} GiB"
