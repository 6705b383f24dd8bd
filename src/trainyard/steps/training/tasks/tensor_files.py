"""Tensors on disk as safetensors, which hold numbers and names and can run no code."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trainyard.steps.runtime.errors import StepError


def write_tensors(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write tensors, each as a copy of its own where several share memory. StepError when the disk refuses."""
    seen: set[int] = set()
    independent = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        independent[name] = tensor.detach().clone() if storage in seen else tensor.detach().contiguous()
        seen.add(storage)
    try:
        save_file(independent, file, metadata={"format": "pt"})
    except SafetensorError as failure:
        raise StepError(f"{file} cannot be written: {failure}") from None


def read_tensors(file: Path, device: torch.device) -> dict[str, torch.Tensor]:
    """Read all tensors of a file onto a device. StepError when the file is not what it should be."""
    try:
        return load_file(file, device=str(device))
    except SafetensorError as failure:
        raise StepError(f"{file} cannot be read: {failure}") from None
