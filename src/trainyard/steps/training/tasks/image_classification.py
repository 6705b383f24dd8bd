"""Image classification: the class that an image belongs to. The task, and what it needs of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from trainyard.settings.small_image_models import small_image_settings
from trainyard.settings.steps.tasks import HALF_RANGE, ImageClassificationSettings
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import write_json
from trainyard.steps.training.from_transformers import ModelNeeds, load_model, new_model, save_model
from trainyard.steps.training.samples.batches import SAMPLE_DRAWS, Tensors
from trainyard.steps.training.tasks.augmentation import Mixing, augment, partners_of
from trainyard.steps.training.tasks.task import Task


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
    head_may_be_new = True

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
        return small_image_settings(config.model_type, max(self.height, self.width))

    def require_fit(self, config: Any, what: str) -> None:
        """Classes and channels must be as many as the dataset's."""
        if config.num_labels != len(self.classes):
            raise StepError(f"{what} has {config.num_labels} classes; the dataset has {len(self.classes)}")
        channels = getattr(config, "num_channels", self.channels)
        if channels != self.channels:
            raise StepError(f"{what} takes {channels}-channel images; the dataset's have {self.channels}")


class ImageClassification(Task):
    """Cross-entropy over the dataset's classes; accuracy and a confusion matrix as measures."""

    Settings = ImageClassificationSettings
    settings: ImageClassificationSettings
    best_is: Mapping[str, Literal["lowest", "highest"]] = MappingProxyType({"loss": "lowest", "accuracy": "highest"})

    def __init__(self, manifest: Manifest, settings: ImageClassificationSettings) -> None:
        super().__init__(manifest, settings)
        if manifest.content != "labelled_images":
            raise StepError(
                f"the task image_classification needs labelled images; this dataset holds {manifest.content}"
            )
        channels, height, width = manifest.arrays["images"].shape
        self._needs = ImageModelNeeds(channels, height, width, manifest.classes)
        self._mixing = Mixing(settings.mixup_alpha, settings.cutmix_alpha)

    @property
    def needs_sample_draws(self) -> bool:
        """Whether images are varied or mixed."""
        return self.settings.augmentation != "none" or self._mixing.is_on

    def new_model(self) -> torch.nn.Module:
        """Return a model of the settings' type with the dataset's image size, channels and classes."""
        return new_model(self.settings.model_type, self.settings.model_overrides, self._needs)

    def modules_trained_whole(self, model: torch.nn.Module) -> list[str]:
        """Return the head: its classes are this dataset's."""
        return [name for name, _ in model.named_children() if name != model.base_model_prefix]

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the sum of the samples' cross-entropies, with augmentation and label smoothing if they are set.

        Of a mixed image it is that of both labels, by their shares.
        """
        images, labels = batch["images"], batch["labels"]
        if self.settings.augmentation != "none":
            images = augment(images, batch[SAMPLE_DRAWS], self.settings.augmentation)
        cross_entropy = partial(functional.cross_entropy, label_smoothing=self.settings.label_smoothing)
        if not self._mixing.is_on:
            return cross_entropy(image_logits(model, images), labels, reduction="sum")
        images, share = self._mixing.mix(images, batch[SAMPLE_DRAWS])
        logits = image_logits(model, images)
        own, other = (cross_entropy(logits, each, reduction="none") for each in (labels, partners_of(labels)))
        return (share * own + (1 - share) * other).sum()

    def flops_per_sample(self, model: torch.nn.Module) -> float | None:
        """Return what torch counts in a forward and a backward pass of one image."""
        # Two, since batch norm refuses a single value per channel, to which the last layers may shrink an image.
        images = torch.empty((2, *self.manifest.arrays["images"].shape), device="meta")
        with FlopCounterMode(display=False) as counter:
            image_logits(model, images).sum().backward()
        return float(counter.get_total_flops() / 2)

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

    def untrained_figures(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Return the share of the class that most samples have."""
        return {"accuracy": float(sums["confusion"].sum(dim=1).max() / sums["confusion"].sum())}

    def class_probabilities(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """Return the softmax of the logits."""
        return image_logits(model, batch["images"]).softmax(dim=1)

    def save_model(self, model: torch.nn.Module, folder: Path) -> None:
        """Write what transformers' `from_pretrained` and its image processors read."""
        save_model(model, folder, self.shard_bytes)
        needs = self._needs
        preprocessing = {
            "image_processor_type": "ViTImageProcessor",
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": [0.5] * needs.channels,
            "image_std": [0.5] * needs.channels,
            "do_resize": True,
            "size": {"height": needs.height, "width": needs.width},
        }
        write_json(folder / "preprocessor_config.json", preprocessing)

    def load_model(self, folder: Path) -> torch.nn.Module:
        """Return a model that a training step saved. Raise StepError if it does not fit the dataset."""
        return load_model(folder, self._needs)


def image_logits(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the logits of each class, fp32 [images, classes], for pixels 0…255 [images, channels, height, width]."""
    pixels = images.float() / HALF_RANGE - 1
    logits: torch.Tensor = model(pixel_values=pixels).logits
    return logits.float()
