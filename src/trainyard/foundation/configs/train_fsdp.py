"""The settings of fully sharded training."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.foundation.configs.training import Training
from trainyard.foundation.step_fields import parameter


@dataclass(frozen=True)
class TrainFSDP(Training):
    """Train a model with FSDP2 (`fully_shard`): parameters, gradients and optimizer state are spread over the ranks."""

    task: str = parameter("language_modeling")
    model_type: str = parameter("gpt2")

    reshard_after_forward: bool = parameter(True)
    """Give a layer's gathered parameters up after its forward pass, and gather them again for its backward pass: less
    memory, half as much communication again."""

    reduce_precision: str = parameter("fp32", choices=("fp32", "bf16"))
    """What gradients are summed over ranks in."""

    cpu_offload: bool = parameter(False)
    """Keep parameters and optimizer state in main memory, and bring them to the GPU layer by layer."""
