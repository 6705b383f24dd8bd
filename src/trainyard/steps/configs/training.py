"""The settings that every training step has, whatever the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainyard.steps.step_fields import input_folder, output_folder, parameter


@dataclass(frozen=True)
class Training:
    """Train a model."""

    data: Path = input_folder()
    """The dataset that a prepare step wrote."""

    model: Path = output_folder()
    """Where the trained model is written: config.json and model.safetensors, as `from_pretrained` reads them."""

    checkpoints: Path = output_folder()
    """Where checkpoints are committed, and where a restarted step finds the newest one."""

    metrics: Path = output_folder()
    """Where metrics.jsonl and the run's settings are written."""

    task: str = parameter("image_classification")
    """What is learnt: image_classification, or your own as `package.module:Class`."""

    model_type: str = parameter("convnext")
    """The architecture: a model type of transformers, such as convnext or vit, or a folder with its config.json (and
    model.safetensors, for fine-tuning)."""

    model_overrides: str | None = parameter(None)
    """Settings of the model's configuration as a JSON object, such as {"hidden_sizes": [32, 64], "depths": [2, 2]}.
    Image size, channels and classes come from the dataset."""

    epochs: int = parameter(16, minimum=1)
    """How many times every training sample is seen."""

    max_steps: int | None = parameter(None, minimum=1)
    """Stop after this many optimizer steps, also in the middle of an epoch."""

    global_batch_size: int = parameter(64, minimum=1)
    """Samples per optimizer step, over all ranks: micro_batch_size x accumulation_steps x world size."""

    micro_batch_size: int = parameter(32, minimum=1)
    """Samples that one rank takes through the model at once; accumulation_steps follows from it."""

    learning_rate: float = parameter(0.003, minimum=0.0)
    """The highest learning rate of the schedule."""

    warmup_fraction: float = parameter(0.1, minimum=0.0, maximum=1.0)
    """The share of all steps in which the learning rate rises from zero; it then falls along a cosine."""

    weight_decay: float = parameter(0.3, minimum=0.0)
    """AdamW's decoupled weight decay, on matrices and convolutions only."""

    gradient_clip_norm: float = parameter(1.0, minimum=0.0)
    """The largest global norm of the gradient; 0 leaves gradients as they are."""

    label_smoothing: float = parameter(0.05, minimum=0.0, maximum=0.9)
    """The share of each label that is spread over all classes."""

    precision: str = parameter("fp32", choices=("fp32", "bf16", "fp16"))
    """What the forward pass computes in; parameters and optimizer state stay in fp32. fp16 needs a GPU."""

    deterministic: bool = parameter(True)
    """Ask torch for algorithms that give the same bits each time, where it has them."""

    seed: int = parameter(0, minimum=0)
    """Decides the initial weights, the order of the samples and all other randomness."""

    checkpoint_every_steps: int = parameter(100, minimum=0)
    """Steps between checkpoints; 0 writes one only when stopping and at the end."""

    keep_checkpoints: int = parameter(2, minimum=1)
    """How many committed checkpoints stay on disk."""

    resume: str = parameter("auto")
    """auto continues from the newest committed checkpoint in `checkpoints`; never deletes what is there and starts
    anew; the folder of a checkpoint continues from that one, unless `checkpoints` already holds one of its own."""

    stop_file: str | None = parameter(None)
    """A file whose appearance, on any node, stops the training like SIGTERM: a checkpoint is committed and the step
    exits with code 75."""

    nonfinite_steps_limit: int = parameter(20, minimum=1)
    """Steps with a loss or gradient that is not finite are skipped; the training fails after this many in a row."""

    log_every_steps: int = parameter(10, minimum=1)
    """Steps between lines of metrics.jsonl."""

    evaluate_every_epochs: int = parameter(1, minimum=0)
    """Epochs between evaluations on the validation split; 0 evaluates only at the end."""

    process_group_timeout_seconds: int = parameter(600, minimum=1)
    """How long a rank waits for the others before it reports a hang and ends."""
