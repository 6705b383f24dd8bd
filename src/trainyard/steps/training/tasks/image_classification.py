"""Image classification: the class that an image belongs to. The task, and what it needs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional

from trainyard.foundation.configs.tasks import ImageClassificationSettings
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import write_json
from trainyard.steps.training.from_transformers import ModelNeeds, load_model, new_model, save_model
from trainyard.steps.training.samples.batches import SAMPLE_DRAWS, Tensors
from trainyard.steps.training.tasks.base import Task

_SMALL_IMAGE_SETTINGS: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]] = {
    "convnext": (
        (16, {"patch_size": 1, "num_stages": 2, "depths": [2, 2], "hidden_sizes": [48, 96]}),
        (64, {"patch_size": 2, "num_stages": 3, "depths": [2, 4, 2], "hidden_sizes": [48, 96, 192]}),
    ),
    "vit": (
        (16, {"patch_size": 2, "num_hidden_layers": 6, "num_attention_heads": 6, "hidden_size": 96}),
        (64, {"patch_size": 4, "num_hidden_layers": 8, "num_attention_heads": 6, "hidden_size": 192}),
    ),
}
"""For each model type, the settings up to an image side in pixels."""

_FOR_SHALLOW_MODELS: Mapping[str, Mapping[str, Any]] = {
    # Blocks that start at full strength train faster; scaling them down at first is for deep models.
    "convnext": {"layer_scale_init_value": 1.0},
    "vit": {"intermediate_size": 384},
}


@dataclass(frozen=True)
class ImageModelNeeds(ModelNeeds):
    """Image size, channels and classes."""

    channels: int
    height: int
    width: int
    classes: Sequence[str]

    kind = "image classifier"
    auto_class = "AutoModelForImageClassification"
    types_table = "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES"
    pretrained_options = {"ignore_mismatched_sizes": True}  # noqa: RUF012
    """A head for classes other than the dataset's is replaced by a new one."""

    def settings_of(self, config: Any, *, has_weights: bool) -> Mapping[str, Any]:
        """With or without weights: what does not fit is replaced."""
        settings = {
            "num_channels": self.channels,
            "image_size": self.height if self.height == self.width else [self.height, self.width],
            "id2label": dict(enumerate(self.classes)),
            "label2id": {name: number for number, name in enumerate(self.classes)},
        }
        return {name: value for name, value in settings.items() if hasattr(config, name)}

    def defaults_of(self, config: Any) -> Mapping[str, Any]:
        """Smaller models for smaller images."""
        return _small_image_settings(config.model_type, max(self.height, self.width))

    def require_fit(self, config: Any, what: str) -> None:
        """Classes and channels must be as many as the dataset's."""
        if config.num_labels != len(self.classes):
            raise StepError(f"{what} has {config.num_labels} classes; the dataset has {len(self.classes)}")
        channels = getattr(config, "num_channels", self.channels)
        if channels != self.channels:
            raise StepError(f"{what} takes {channels}-channel images; the dataset's have {self.channels}")


def _small_image_settings(model_type: str, image_side: int) -> Mapping[str, Any]:
    """Return the settings that replace transformers' defaults for images of this side in pixels; often none."""
    for largest_side, settings in _SMALL_IMAGE_SETTINGS.get(model_type, ()):
        if image_side <= largest_side:
            return {**settings, **_FOR_SHALLOW_MODELS[model_type]}
    return MappingProxyType({})


_HALF_RANGE = 127.5
"""Pixels 0…255 become -1…1: the same for every dataset, so that a model carries no statistics of its own."""

_LARGEST_SHIFT = 1 / 8
"""A share of an image's side; at least one pixel."""
_BITS = 16
"""Random bits per decision, which is uniform to within 2^-16."""


class ImageClassification(Task):
    """Cross-entropy over the dataset's classes; accuracy and a confusion matrix as measures."""

    Settings = ImageClassificationSettings
    settings: ImageClassificationSettings

    def __init__(self, manifest: Manifest, settings: ImageClassificationSettings) -> None:
        super().__init__(manifest, settings)
        if manifest.content != "labelled_images":
            raise StepError(
                f"the task image_classification needs labelled images; this dataset holds {manifest.content}"
            )
        channels, height, width = manifest.arrays["images"].shape
        self._needs = ImageModelNeeds(channels, height, width, manifest.classes)

    @property
    def needs_sample_draws(self) -> bool:
        """Whether there is augmentation."""
        return self.settings.augmentation != "none"

    def new_model(self) -> torch.nn.Module:
        """Return a model of the settings' type with the dataset's image size, channels and classes."""
        return new_model(self.settings.model_type, self.settings.model_overrides, self._needs)

    def modules_trained_whole(self, model: torch.nn.Module) -> list[str]:
        """Return the head: its classes are this dataset's."""
        return [name for name, _ in model.named_children() if name != model.base_model_prefix]

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the sum of the samples' cross-entropies, with augmentation and label smoothing if they are set."""
        images = batch["images"]
        if self.settings.augmentation != "none":
            images = augment(images, batch[SAMPLE_DRAWS], flip=self.settings.augmentation == "shift_flip")
        smoothing = self.settings.label_smoothing
        return functional.cross_entropy(
            image_logits(model, images), batch["labels"], reduction="sum", label_smoothing=smoothing
        )

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """Return sums for loss (without smoothing) and accuracy, and counts of pairs (true, predicted) of classes."""
        logits, labels = image_logits(model, batch["images"]), batch["labels"]
        predicted = logits.argmax(dim=1)
        classes = len(self.manifest.classes)
        pairs = torch.bincount(labels * classes + predicted, minlength=classes * classes)
        return {
            "loss_sum": functional.cross_entropy(logits, labels, reduction="none").double().sum(),
            "accuracy_sum": (predicted == labels).double().sum(),
            "samples": torch.tensor(len(labels), dtype=torch.float64, device=labels.device),
            "confusion": pairs.double().reshape(classes, classes),
        }

    def class_probabilities(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the softmax of the logits."""
        return image_logits(model, batch["images"]).softmax(dim=1)

    def save_model(self, model: torch.nn.Module, folder: Path) -> None:
        """Write what transformers' `from_pretrained` and its image processors read."""
        save_model(model, folder)
        write_json(folder / "preprocessor_config.json", _preprocessing(self._needs))

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Return a model that a training step saved. Raise StepError if it does not fit the dataset."""
        return load_model(folder, self._needs)


def image_logits(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the logits of each class, fp32 [images, classes], for pixels 0…255 [images, channels, height, width]."""
    pixels = images.float() / _HALF_RANGE - 1
    logits: torch.Tensor = model(pixel_values=pixels).logits
    return logits.float()


def _preprocessing(needs: ImageModelNeeds) -> Mapping[str, object]:
    """Return the same scaling as here, for transformers' image processors."""
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5] * needs.channels,
        "image_std": [0.5] * needs.channels,
        "do_resize": True,
        "size": {"height": needs.height, "width": needs.width},
    }


def augment(images: torch.Tensor, draws: torch.Tensor, *, flip: bool) -> torch.Tensor:
    """Return images [samples, channels, height, width] shifted by up to an eighth and, with `flip`, half mirrored.

    `draws` int64 [samples] holds 64 random bits for each. Shifted-in pixels repeat the image's edge.
    """
    samples, channels, height, width = images.shape
    rows = _shifted(height, draws)
    columns = _shifted(width, draws >> _BITS)
    if flip:
        is_mirrored = ((draws >> (2 * _BITS)) & 1).bool()
        columns = torch.where(is_mirrored[:, None], columns.flip(1), columns)
    sample = torch.arange(samples, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return images[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _shifted(side: int, draws: torch.Tensor) -> torch.Tensor:
    """Return which row (or column) of the image each one of the result shows: int64 [samples, side]."""
    largest = max(1, round(side * _LARGEST_SHIFT))
    shift = ((draws & ((1 << _BITS) - 1)) * (2 * largest + 1) >> _BITS) - largest
    return (torch.arange(side, device=draws.device) + shift[:, None]).clamp(0, side - 1)
