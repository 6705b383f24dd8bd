"""Determinism, and the state of every random number generator."""

from __future__ import annotations

import os
import random
import warnings
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from trainyard.steps.runtime.errors import StepError

_CUBLAS_WORKSPACE = ":4096:8"
"""One of two settings that make cuBLAS deterministic: docs.nvidia.com/cuda/cublas, "Results Reproducibility"."""

_NOT_DETERMINISTIC = " does not have a deterministic implementation"
"""Torch's words after the name of an operation."""
_PYTHON_VERSION_OF_STATE = 3
_MERSENNE = "MT19937"


def ask_for_determinism() -> None:
    """Choose deterministic algorithms; where torch has none, it warns. Call it before any work on a GPU.

    Backward passes are stricter: see `deterministic_backward`.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Else every torch.empty is filled first, for the sake of code that reads what it never wrote.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    # Torch warns of backward passes outside of steps.
    warnings.filterwarnings("ignore", r".* attention defaults to a non-deterministic algorithm")
    # Its backward pass has no deterministic algorithm; flash attention's has one, see `deterministic_backward`.
    torch.backends.cuda.enable_cudnn_sdp(False)


def deterministic_backward() -> AbstractContextManager[None]:
    """Return a context that requires determinism of a backward pass, if it was asked for.

    StepError names an operation without it. Only when it is required, not merely warned about, do the backward passes
    of flash and memory-efficient attention choose their deterministic algorithms (torch's attention_backward.cu).
    """
    return _DeterminismRequired() if torch.are_deterministic_algorithms_enabled() else nullcontext()


class _DeterminismRequired(AbstractContextManager[None]):
    """Not a generator, which would take longer to enter."""

    def __enter__(self) -> None:
        self._warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
        torch._C._set_deterministic_algorithms(True, warn_only=False)  # the public function also imports the compiler

    def __exit__(self, _: object, failure: object, __: object) -> None:
        torch._C._set_deterministic_algorithms(True, warn_only=self._warns_only)
        operation, found, _ = str(failure).partition(_NOT_DETERMINISTIC)
        if found and isinstance(failure, RuntimeError):
            raise StepError(
                f"{operation.split()[-1]} in the model's backward pass has no deterministic algorithm on this device; "
                "train without one: --deterministic false"
            ) from None


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch (CPU and GPUs)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of Python's, numpy's, torch's and, on a GPU, CUDA's generators, as tensors to save."""
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
    """Restore all generators to a saved state."""
    has_python_gauss, python_gauss = state["python_gauss"].tolist()
    python_words = tuple(state["python_words"].tolist())
    random.setstate((_PYTHON_VERSION_OF_STATE, python_words, python_gauss if has_python_gauss else None))
    position, has_gauss = state["numpy_position"].tolist()
    words = state["numpy_words"].numpy().astype(np.uint32)
    np.random.set_state((_MERSENNE, words, position, has_gauss, state["numpy_gauss"].item()))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
