"""The settings of data-parallel training."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.foundation.configs.training import Training


@dataclass(frozen=True)
class TrainDDP(Training):
    """Train a model with DistributedDataParallel: every rank holds the whole model and sees its share of each batch."""
