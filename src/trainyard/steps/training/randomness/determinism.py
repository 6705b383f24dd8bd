"""The same bits each time, as far as torch can."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

_CUBLAS_WORKSPACE = ":4096:8"
"""One of two settings that make cuBLAS deterministic: docs.nvidia.com/cuda/cublas, "Results Reproducibility"."""


def ask_for_determinism() -> None:
    """Choose deterministic algorithms; where torch has none, it warns and goes on. Before any work on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Else every torch.empty is written once before it is used, for the sake of code that reads what it never wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch (CPU and GPUs)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
