"""Linear layers that multiply in float8, by torchao: weights stay as they are, and are rounded for each product."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trainyard.settings.steps.training import Training
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.packages import from_extra, require_packages

_LEAST_CAPABILITY = (8, 9)
"""Of NVIDIA's GPUs, Ada and Hopper: what torch._scaled_mm asks for."""
_MULTIPLE = 16
"""Of both dimensions of a matrix: what cuBLAS asks for."""


def check_float8(settings: Training) -> None:
    """Raise StepError, or SetupError for a missing package, where layers cannot multiply in float8."""
    if not settings.float8:
        return
    if settings.precision != "bf16":
        raise StepError(f"--float8 needs --precision bf16 for everything else; found {settings.precision}")
    if settings.tuning != "full":
        raise StepError(f"--float8 does not work with --tuning {settings.tuning}; use full, or leave it out")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < _LEAST_CAPABILITY:
        found = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
        raise StepError(f"--float8 needs a GPU that multiplies in float8 (L4, L40S, H100 and later); this is {found}")
    require_packages("--float8", from_extra("torchao"), "torchao")


def multiply_in_float8(blocks: Sequence[torch.nn.Module], *, emulate: bool = False) -> None:
    """Replace the linear layers of the blocks, in place; names and weights stay. `emulate` computes in fp32."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    for block in blocks:
        convert_to_float8_training(block, module_filter_fn=_is_suitable, config=Float8LinearConfig(emulate=emulate))


def _is_suitable(layer: torch.nn.Module, name: str) -> bool:
    if not isinstance(layer, torch.nn.Linear):
        return False
    return layer.in_features % _MULTIPLE == 0 and layer.out_features % _MULTIPLE == 0
