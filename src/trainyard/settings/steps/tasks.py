"""The settings of tasks. Each task adds its own to what every task has; a user's own task does the same."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.settings.step_fields import parameter

HALF_RANGE = 127.5
"""Pixels 0…255 become -1…1: the same for every dataset, so that a model carries no statistics of its own."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What every task has: AdamW's constants, whose usual values differ from field to field.

    The defaults are PyTorch's, and what image models are usually trained with (ConvNeXt, arXiv 2201.03545, table 5).
    """

    adam_beta1: float = parameter(0.9, minimum=0.0, maximum=0.999999, on_resume="numbers")
    """How much of its running mean of gradients AdamW keeps at each step."""

    adam_beta2: float = parameter(0.999, minimum=0.0, maximum=0.999999, on_resume="numbers")
    """How much of its running mean of squared gradients AdamW keeps at each step."""

    adam_epsilon: float = parameter(1e-8, minimum=0.0, on_resume="numbers")
    """What AdamW adds to the root of the squared gradients' mean before dividing by it."""


@dataclass(frozen=True, kw_only=True)
class ImageClassificationSettings(TaskSettings):
    """The settings of the task image_classification."""

    model_type: str = parameter("convnext", port=True, on_resume="identity")
    """The architecture: a model type of transformers, such as convnext, vit or resnet, or a folder with its config.json
    (and model.safetensors, for fine-tuning)."""

    model_overrides: str | None = parameter(None, is_mapping=True, on_resume="identity")
    """Settings of the model's configuration as a JSON object, such as {"hidden_sizes": [32, 64], "depths": [2, 2]}.
    Image size, channels and classes come from the dataset."""

    label_smoothing: float = parameter(0.05, minimum=0.0, maximum=0.9, on_resume="numbers")
    """The share of each label that is spread over all classes."""

    augmentation: str = parameter(
        "none", choices=("none", "shift", "shift_flip", "crop", "crop_flip"), on_resume="numbers"
    )
    """How training images are varied, on the device: none; shift, by up to an eighth of their size; crop, a part of 8
    to 100 % of the area enlarged to the whole, as ImageNet needs; with _flip half of them are also mirrored left to
    right."""

    mixup_alpha: float = parameter(0.0, minimum=0.0, maximum=10.0, on_resume="numbers")
    """Blend each training image, and its label, with another of its micro-batch, by a share drawn from Beta(alpha,
    alpha); 0 does not. Usual: 0.2 to 0.8."""

    cutmix_alpha: float = parameter(0.0, minimum=0.0, maximum=10.0, on_resume="numbers")
    """Replace a rectangle of each training image by that of another of its micro-batch, of an area drawn from
    Beta(alpha, alpha); 0 does not. Usual: 1. With mixup too, half of the images take each."""


@dataclass(frozen=True, kw_only=True)
class LanguageModelingSettings(TaskSettings):
    """The settings of the task language_modeling."""

    model_type: str = parameter("gpt2", port=True, on_resume="identity")
    """The architecture: a model type of transformers, such as gpt2 or llama, or a folder with its config.json (and
    model.safetensors, for fine-tuning)."""

    model_overrides: str | None = parameter(None, is_mapping=True, on_resume="identity")
    """Settings of the model's configuration as a JSON object, such as {"num_hidden_layers": 4, "hidden_size": 256}.
    Vocabulary and sequence length come from the dataset. A new model has no dropout unless it is set here."""

    loss_chunk_tokens: int = parameter(0, minimum=0, on_resume="numbers")
    """Compute logits and loss for this many tokens at a time, and again in the backward pass, so that the logits of a
    micro-batch never exist as a whole; 0: all at once. 1024 saves most of their memory; the output layer takes a third
    longer."""

    # As GPT-3 (arXiv 2005.14165, appendix B) and Llama (arXiv 2302.13971, section 2.3) were trained.
    adam_beta2: float = parameter(0.95, minimum=0.0, maximum=0.999999, on_resume="numbers")


@dataclass(frozen=True, kw_only=True)
class PreferencesSettings(LanguageModelingSettings):
    """The settings of the task preferences."""

    beta: float = parameter(0.1, minimum=0.0001, on_resume="numbers")
    """How strongly the model is held to the one it starts from: a pair's margin is this times the difference of the
    answers' log-ratios."""

    label_smoothing: float = parameter(0.0, minimum=0.0, maximum=0.499999, on_resume="numbers")
    """The share of pairs that is taken to be labelled the wrong way round, less than a half: from there on the rejected
    answers would be preferred. 0 trusts all of them."""


BUILT_IN_TASKS: dict[str, type[TaskSettings]] = {
    "image_classification": ImageClassificationSettings,
    "language_modeling": LanguageModelingSettings,
    "preferences": PreferencesSettings,
}
"""Each built-in task's name, with the dataclass of its settings."""
