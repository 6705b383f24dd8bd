"""The state of every random number generator of a rank, as tensors: saved with a checkpoint, restored from it."""

from __future__ import annotations

import random

import numpy as np
import torch

_PYTHON_VERSION_OF_STATE = 3
_MERSENNE = "MT19937"


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of Python's, numpy's, torch's and, on a GPU, CUDA's generators."""
    _, python_words, python_gauss = random.getstate()
    _, numpy_words, numpy_position, has_gauss, numpy_gauss = np.random.get_state()
    state = {
        "python_words": torch.tensor(python_words, dtype=torch.int64),
        "python_gauss": torch.tensor([python_gauss is not None, python_gauss or 0.0], dtype=torch.float64),
        "numpy_words": torch.from_numpy(np.asarray(numpy_words).astype(np.int64)),
        "numpy_position": torch.tensor([numpy_position, has_gauss], dtype=torch.int64),
        "numpy_gauss": torch.tensor([numpy_gauss], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Put all generators back to a saved state."""
    has_python_gauss, python_gauss = state["python_gauss"].tolist()
    python_words = tuple(state["python_words"].tolist())
    random.setstate((_PYTHON_VERSION_OF_STATE, python_words, python_gauss if has_python_gauss else None))
    position, has_gauss = state["numpy_position"].tolist()
    words = state["numpy_words"].numpy().astype(np.uint32)
    np.random.set_state((_MERSENNE, words, position, has_gauss, state["numpy_gauss"].item()))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
