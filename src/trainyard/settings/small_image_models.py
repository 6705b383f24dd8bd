"""Settings of image models for images smaller than transformers' defaults are made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

_BY_SIDE: Mapping[str, Sequence[tuple[int, Mapping[str, Any]]]] = {
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


def small_image_settings(model_type: str, image_side: int) -> Mapping[str, Any]:
    """Return the settings that replace transformers' defaults for images of this side in pixels; often none."""
    for largest_side, settings in _BY_SIDE.get(model_type, ()):
        if image_side <= largest_side:
            return {**settings, **_FOR_SHALLOW_MODELS[model_type]}
    return MappingProxyType({})
