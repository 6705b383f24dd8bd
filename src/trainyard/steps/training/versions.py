"""What is installed and what it runs on: the first lines of every log."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

_PACKAGES = ("torch", "numpy", "transformers", "safetensors", "mlflow-skinny")


def installed_versions() -> dict[str, str]:
    """The versions that a result may depend on."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.cuda.is_available():
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        versions["gpu"] = torch.cuda.get_device_name()
    return versions


def banner(device: torch.device, world_size: int) -> str:
    """One line for the start of a log."""
    versions = ", ".join(f"{name} {number}" for name, number in installed_versions().items())
    ranks = f"{world_size} rank{'s' if world_size > 1 else ''} on {device.type}"
    return f"{versions}; {ranks}, {torch.get_num_threads()} threads each"
