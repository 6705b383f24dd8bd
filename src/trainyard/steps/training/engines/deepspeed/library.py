"""DeepSpeed, imported so that it is quiet, needs no compiler, and runs where there is no GPU."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch

from trainyard.steps.runtime.errors import StepError


def import_deepspeed() -> Any:
    """The library. StepError where it is not installed."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as failure:
        raise StepError(f'DeepSpeed cannot be imported: {failure}; pip install "trainyard[train]"') from None
    # Its banners, on every rank, tell what the step's own lines do; what goes wrong is still said.
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # It still calls what torch 2.13 gives another name, and is told so at each step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    # An exchange over shared memory that it would compile at run time, for a minute; gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
