"""Image classifiers, sized to the dataset's images and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.models.from_transformers import ModelNeeds
from trainyard.steps.training.models.small_image_models import small_image_settings


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
    """A head for other classes than the dataset's is replaced by a new one."""

    def settings_of(self, config: Any, *, has_weights: bool) -> Mapping[str, Any]:
        """Weights or not: what does not fit is replaced."""
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
        """As many classes, as many channels."""
        if config.num_labels != len(self.classes):
            raise StepError(f"{what} has {config.num_labels} classes; the dataset has {len(self.classes)}")
        channels = getattr(config, "num_channels", self.channels)
        if channels != self.channels:
            raise StepError(f"{what} takes {channels}-channel images; the dataset's have {self.channels}")
