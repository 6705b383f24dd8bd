"""The settings of tasks. Each task adds its own to what every task has; a user's own task does the same."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.foundation.step_fields import parameter


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What every task has: AdamW's constants, whose usual values differ from field to field.

    The defaults are PyTorch's, and what image models are usually trained with (ConvNeXt, arXiv 2201.03545, table 5).
    """

    adam_beta1: float = parameter(0.9, minimum=0.0, maximum=0.999999, may_change=True)
    """How much of its running mean of gradients AdamW keeps at each step."""

    adam_beta2: float = parameter(0.999, minimum=0.0, maximum=0.999999, may_change=True)
    """How much of its running mean of squared gradients AdamW keeps at each step."""

    adam_epsilon: float = parameter(1e-8, minimum=0.0, may_change=True)
    """What AdamW adds to the root of the squared gradients' mean before dividing by it."""


@dataclass(frozen=True, kw_only=True)
class ImageClassificationSettings(TaskSettings):
    """The settings of the task image_classification."""

    model_type: str = parameter("convnext")
    """The architecture: a model type of transformers, such as convnext, vit or resnet, or a folder with its config.json
    (and model.safetensors, for fine-tuning)."""

    model_overrides: str | None = parameter(None)
    """Settings of the model's configuration as a JSON object, such as {"hidden_sizes": [32, 64], "depths": [2, 2]}.
    Image size, channels and classes come from the dataset."""

    label_smoothing: float = parameter(0.05, minimum=0.0, maximum=0.9, may_change=True)
    """The share of each label that is spread over all classes."""

    augmentation: str = parameter("none", choices=("none", "shift", "shift_flip"), may_change=True)
    """How training images are varied, on the device: none; shifted by up to an eighth of their size; also mirrored left
    to right."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelingSettings(TaskSettings):
    """The settings of the task language_modeling."""

    model_type: str = parameter("gpt2")
    """The architecture: a model type of transformers, such as gpt2 or llama, or a folder with its config.json (and
    model.safetensors, for fine-tuning)."""

    model_overrides: str | None = parameter(None)
    """Settings of the model's configuration as a JSON object, such as {"num_hidden_layers": 4, "hidden_size": 256}.
    Vocabulary and sequence length come from the dataset. A new model has no dropout unless it is set here."""

    loss_chunk_tokens: int = parameter(0, minimum=0, may_change=True)
    """Compute logits and loss for this many tokens at a time, and again in the backward pass, so that the logits of a
    micro-batch never exist as a whole; 0: all at once. 1024 saves most of their memory; the output layer takes a third
    longer."""

    # As GPT-3 (arXiv 2005.14165, appendix B) and Llama (arXiv 2302.13971, section 2.3) were trained.
    adam_beta2: float = parameter(0.95, minimum=0.0, maximum=0.999999, may_change=True)


BUILT_IN_TASKS: dict[str, type[TaskSettings]] = {
    "image_classification": ImageClassificationSettings,
    "language_modeling": LanguageModelingSettings,
}
"""Each built-in task's name, with the dataclass of its settings."""
