"""The settings of the evaluation step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.foundation.step_fields import input_folder, output_folder, parameter


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a trained model on one split, every sample exactly once whatever the number of ranks."""

    data: Path = input_folder()
    """The dataset that a prepare step wrote."""

    model: Path = input_folder()
    """The folder of the trained model."""

    evaluation: Path = output_folder()
    """Where evaluation.json is written; and confusion_matrix.json and confusion_matrix.png for a classifier, sample.txt
    for a language model."""

    task: str | None = parameter(None)
    """The task that the model was trained for. Not given, the task.json beside the model says it, with the task's
    settings; given with settings of its own, they must agree with that file, or stand in for one that is missing."""

    split: str = parameter("test")
    """Which split of the dataset to evaluate on."""

    micro_batch_size: int = parameter(256, minimum=1)
    """Samples that one rank takes through the model at once."""

    precision: str = parameter("fp32", choices=("fp32", "bf16", "fp16"))
    """What the forward pass computes in."""

    minimum_accuracy: float = parameter(0.0, minimum=0.0, maximum=1.0)
    """The step fails when accuracy is below this, after it has written its results."""

    maximum_perplexity: float | None = parameter(None, minimum=1.0)
    """The step fails when a language model's perplexity is above this, after it has written its results."""

    sample_prompt: str | None = parameter(None)
    """A beginning for a language model to go on with; not given, the beginning of the split's first sample."""

    sample_tokens: int = parameter(64, minimum=0)
    """How many tokens of text a language model writes as a sample; 0 for none."""

    sample_temperature: float = parameter(0.8, minimum=0.0)
    """How freely the sample is drawn, the same each time; 0 always takes the likeliest token."""

    process_group_timeout_seconds: int = parameter(600, minimum=1)
    """How long a rank waits for the others before it reports a hang and ends."""
