"""What NCCL and torch read from the environment when they start on a GPU: set here unless somebody has set it."""

from __future__ import annotations

from collections.abc import MutableMapping

import torch

_RECORDED_COLLECTIVES = "2000"
"""torch's recommendation, of a few hundred bytes each: docs.pytorch.org, "Flight Recorder for Debugging"."""
_RECORDER_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Today's name and the one before, which torch up to 2.9 reads."""
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_REPEATABLE_ALGORITHMS = "^NVLS,NVLSTree"
"""Sums inside NVLink's switches come in any order; NCCL chooses among its other algorithms by topology and size alone.
Megatron-LM's --deterministic-mode asks for the same."""


def set_gpu_defaults(environment: MutableMapping[str, str], *, deterministic: bool) -> None:
    """Set what is not set yet, before CUDA and NCCL start.

    torch's flight recorder, which the hang watch writes out; memory in segments that grow, which fragment less, where
    NVIDIA's driver has them; and NCCL's repeatable algorithms for trainings that promise the same bits each time.
    """
    if not any(name in environment for name in _RECORDER_VARIABLES):
        environment.update(dict.fromkeys(_RECORDER_VARIABLES, _RECORDED_COLLECTIVES))
    if torch.version.hip is None and not any(name in environment for name in _ALLOCATOR_VARIABLES):
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if deterministic:
        environment.setdefault("NCCL_ALGO", _REPEATABLE_ALGORITHMS)
