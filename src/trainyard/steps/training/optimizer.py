"""AdamW as every engine builds it."""

from __future__ import annotations

import torch


def new_optimizer(model: torch.nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and convolutions, and leaves biases, norms and scales (one dimension) alone.

    The learning rate is set before each step by the engine.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, betas=(0.9, 0.99), fused=True)
