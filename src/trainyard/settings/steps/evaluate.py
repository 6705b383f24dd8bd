"""The settings of the evaluation step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.settings.step_fields import input_folder, output_folder, parameter


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a trained model on one split, every sample exactly once for any number of ranks."""

    data: Path = input_folder()
    """The dataset that a prepare step wrote."""

    model: Path = input_folder()
    """The folder of the trained model."""

    evaluation: Path = output_folder()
    """Where evaluation.json is written, with confusion_matrix.json, confusion_matrix.png and pictures of mistakes for a
    classifier, and sample.txt for a language model."""

    base_model: Path | None = input_folder(optional=True, type="custom_model")
    """The model that adapters were trained on, if `model` has only adapters. Not needed where it still lies where
    training found it."""

    task: str | None = parameter(None)
    """The task that the model was trained for. Not given, the task.json beside the model says it, with the task's
    settings; given with settings of its own, they must agree with that file, or stand in for one that is missing."""

    split: str = parameter("test")
    """Which split of the dataset to evaluate on."""

    micro_batch_size: int = parameter(256, minimum=1)
    """Samples per forward pass of one rank."""

    shard_model: bool = parameter(False)
    """Spread the model's weights over the ranks, and gather them block by block, as FSDP does: for a model that a GPU
    does not hold. Each rank reads its rows from the model's files where they hold the model's tensors as they are."""

    precision: str = parameter("fp32", choices=("fp32", "bf16", "fp16"))
    """The floating-point type of the forward pass."""

    minimum_accuracy: float = parameter(0.0, minimum=0.0, maximum=1.0, on_resume="nothing")
    """The step fails if the accuracy is below this, after writing its results."""

    maximum_perplexity: float | None = parameter(None, minimum=1.0)
    """The step fails if a language model's perplexity is above this, after writing its results."""

    sample_prompt: str | None = parameter(None)
    """The text for a language model to continue; not given, the beginning of the split's first sample."""

    sample_tokens: int = parameter(64, minimum=0)
    """How many tokens of sample text a language model writes; 0 for none."""

    sample_temperature: float = parameter(0.8, minimum=0.0)
    """The temperature that the sample is drawn at; 0 always takes the likeliest token."""

    verify_data: str = parameter("auto", choices=("auto", "sizes", "digests"))
    """What to check of the split's files first: their sizes, or also every byte by its digest; `auto` checks digests if
    that takes less than a second per GB, or less than a second in all."""

    process_group_timeout_seconds: int = parameter(600, minimum=1)
    """How long a rank waits for the others before it reports a hang and fails."""
