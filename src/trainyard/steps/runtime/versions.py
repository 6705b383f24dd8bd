"""The installed versions and the hardware: the first line of every log."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from trainyard.steps.runtime.packages import python_and_packages
from trainyard.steps.runtime.rank_variables import RankVariables

_PACKAGES = ("torch", "numpy", "transformers", "safetensors", "deepspeed", "mlflow-skinny")
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
_AMD_DRIVER = Path("/sys/module/amdgpu/version")


def installed_versions() -> dict[str, str]:
    """Return the versions that a result may depend on."""
    versions = python_and_packages(_PACKAGES)
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    if torch.version.hip:
        versions["rocm"] = torch.version.hip
    if torch.cuda.is_available():
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        versions["gpu"] = torch.cuda.get_device_name()
        if driver := _driver_version():
            versions["driver"] = driver
    return versions


def _driver_version() -> str | None:
    """Return the version of the GPU driver, as reported by its kernel module."""
    if _NVIDIA_DRIVER.is_file():
        found = re.search(r"\b\d+\.\d+(\.\d+)?\b", _NVIDIA_DRIVER.read_text())
        return found[0] if found else None
    return _AMD_DRIVER.read_text().strip() if _AMD_DRIVER.is_file() else None


def banner(device: torch.device, variables: RankVariables) -> str:
    """Return the first line of a log: versions, ranks, and whose variables the ranks were read from."""
    versions = ", ".join(f"{name} {number}" for name, number in installed_versions().items())
    size = variables.world_size
    ranks = f"{size} rank{'s' if size > 1 else ''} on {device.type} (from {variables.launcher})"
    return f"{versions}; {ranks}, {torch.get_num_threads()} threads each"
