"""How much memory a rank has needed at most."""

from __future__ import annotations

import resource
import sys

import torch

from trainyard.steps.runtime.world import World

_GIB = 2**30


def peak_memory_bytes(device: torch.device) -> int:
    """The most that this process had at once since its start: tensors on its GPU, or, on a CPU, resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # kibibytes on Linux: getrusage(2)


def memory_summary(world: World) -> str:
    """The peak of the rank with the highest one, in words; every rank calls it."""
    device = world.device
    reserved_bytes = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
    peaks = world.gather((peak_memory_bytes(device), reserved_bytes))
    peak_bytes, reserved_bytes = max(peaks)
    rank = peaks.index((peak_bytes, reserved_bytes))
    text = f"peak memory {peak_bytes / _GIB:.2f} GiB on rank {rank}, which has the most"
    if device.type != "cuda":
        return text
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    return f"{text}; {reserved_bytes / _GIB:.2f} GiB reserved, of {total_bytes / _GIB:.0f} GiB"
