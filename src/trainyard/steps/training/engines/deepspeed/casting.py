"""What a module computes in, settled at its own forward pass, for an engine that leaves no other place for it."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch


def forward_in_autocast(module: torch.nn.Module, device_type: str, dtype: torch.dtype) -> None:
    """Of fp32 parameters: each operation chooses."""
    forward = module.forward

    @wraps(forward)
    def cast(*arguments: Any, **named: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype):
            return forward(*arguments, **named)

    module.forward = cast


def forward_of_cast_inputs(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Of parameters that have the type already: what comes from outside is given it too, as FSDP2's policy does.

    Buffers keep theirs: the frequencies of rotary positions, for one, are no use in bf16.
    """
    forward = module.forward

    @wraps(forward)
    def cast(*arguments: Any, **named: Any) -> Any:
        return forward(
            *(_cast(argument, dtype) for argument in arguments),
            **{name: _cast(argument, dtype) for name, argument in named.items()},
        )

    module.forward = cast


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    if type(value) is tuple:
        return tuple(_cast(part, dtype) for part in value)
    return value
