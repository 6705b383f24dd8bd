"""The shape of a model from its configuration: in closed form for known families, else counted on the meta device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError, unknown_name
from trainyard.plan.estimate.architectures import (
    Architecture,
    families,
    find_architecture,
    from_settings,
    refuse_experts,
)
from trainyard.plan.estimate.image_models import CLASSES, IMAGE_FAMILIES, IMAGE_SIZE, ImageModel, Images, image_model
from trainyard.plan.estimate.meta_model import architecture_on_meta, image_model_on_meta, is_image_type
from trainyard.project_files import read_text
from trainyard.settings.suggestions import close_match


def find_model(model: str) -> Architecture | ImageModel:
    """Return the model of a config.json, of a folder that has one, or of the table. UsageError where there is none."""
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise UsageError(f"{model}: no config.json in this folder")
    if path.is_file():
        return read_config(path)
    if path.suffix == ".json":
        raise UsageError(f"{model}: no such file")
    if model in IMAGE_FAMILIES:
        assumed = f"{IMAGE_SIZE} × {IMAGE_SIZE} images and {CLASSES} classes are assumed"
        return image_model(model, {}, Images(assumed=assumed))
    return find_architecture(model)


def read_config(file: Path, images: Images | None = None) -> Architecture | ImageModel:
    """Return the model of a config.json as `save_pretrained` writes it; UsageError if it is not one.

    An image classifier is one for `images`; where they are not given, for those that the configuration names.
    """
    try:
        config = json.loads(read_text(file))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{file}: expected a JSON object, not {type(config).__name__}")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UsageError(f"{file}: no model_type; expected one of: {', '.join(families())}")
    try:
        if model_type in IMAGE_FAMILIES or (model_type not in families() and is_image_type(model_type)):
            return image_model_of(model_type, config, images or _images_of(config))
        return architecture_of(model_type, config, str(file))
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def _images_of(config: Mapping[str, Any]) -> Images:
    """Return the images that a configuration is for, with ImageNet's values for those it does not name.

    UsageError if one of them is not a size or a number.
    """
    side = config.get("image_size") or IMAGE_SIZE
    sides = side if isinstance(side, list) else [side, side]
    if len(sides) != 2 or not all(_is_count(each) for each in sides):
        raise UsageError(f"image_size {side!r}; expected a number of pixels, or [height, width]")
    labels = config.get("id2label") or {}
    if not isinstance(labels, dict):
        raise UsageError(f"id2label {labels!r}; expected an object with the name of each class")
    channels, classes = config.get("num_channels") or 3, config.get("num_labels") or len(labels) or CLASSES
    for name, count in (("num_channels", channels), ("num_labels", classes)):
        if not _is_count(count):
            raise UsageError(f"{name} {count!r}; expected a whole number above 0")
    height, width = sides
    return Images(height, width, channels, classes)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def image_model_of(model_type: str, settings: Mapping[str, Any], images: Images) -> ImageModel:
    """Return the image classifier of a model type of transformers with these settings. UsageError if it cannot be."""
    if model_type in IMAGE_FAMILIES:
        return image_model(model_type, settings, images)
    return image_model_on_meta(model_type, settings, images)


def architecture_of(model_type: str, settings: Mapping[str, Any], name: str) -> Architecture:
    """Return the model of a model type of transformers with these settings. UsageError for one that cannot be.

    A type that is one slip away from a known family is taken for a slip, before transformers is imported to ask.
    """
    refuse_experts(settings, name)
    if model_type in families():
        return from_settings(model_type, settings, name)
    if close_match(model_type, families()):
        raise unknown_name("model_type", model_type, families())
    return architecture_on_meta(model_type, settings, name)


def architecture_for_data(
    model_type: str, settings: Mapping[str, Any], vocabulary_size: int, length: int
) -> Architecture:
    """Return a new model with the vocabulary and the length of a dataset, as the training steps make it.

    `settings` of its configuration take precedence. UsageError for a model that cannot be.
    """
    family = families().get(model_type)
    needs = {"vocab_size": vocabulary_size}
    if family is not None:
        needs = {family.names["vocabulary_size"]: vocabulary_size, family.names["positions"]: length}
    return architecture_of(model_type, {**needs, **settings}, model_type)
