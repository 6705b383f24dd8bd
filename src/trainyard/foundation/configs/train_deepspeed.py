"""The settings of training with DeepSpeed's ZeRO."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.foundation.configs.training import Training
from trainyard.foundation.step_fields import input_file, parameter


@dataclass(frozen=True, kw_only=True)
class TrainDeepSpeed(Training):
    """Train a model with DeepSpeed: ZeRO 0 to 3, with offload to main memory, as its configuration file says."""

    deepspeed_config: Path = input_file()
    """DeepSpeed's configuration as JSON. Where it says "auto", the value comes from this step's settings."""

    task: str = parameter("language_modeling")
    model_type: str = parameter("gpt2")
