"""Image classifiers, sized to the dataset's images and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.models.from_transformers import ModelNeeds

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
