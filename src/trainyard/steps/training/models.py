"""Image classifiers from transformers: by model type or from a folder; sized to the dataset, never downloaded."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainyard.steps.errors import StepError
from trainyard.steps.training.small_image_models import small_image_settings

# Before transformers is imported: a job must not wait for, or depend on, a server it was not told of.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

_CONFIG_FILE, _WEIGHTS_FILE = "config.json", "model.safetensors"


@dataclass(frozen=True)
class ImageModelNeeds:
    """What the dataset decides about a model."""

    channels: int
    height: int
    width: int
    classes: Sequence[str]

    def settings_of(self, config: Any) -> dict[str, Any]:
        """In the words of transformers' configurations, as far as this configuration knows them."""
        settings = {
            "num_channels": self.channels,
            "image_size": self.height if self.height == self.width else [self.height, self.width],
            "id2label": dict(enumerate(self.classes)),
            "label2id": {name: number for number, name in enumerate(self.classes)},
        }
        return {name: value for name, value in settings.items() if hasattr(config, name)}


def new_image_classifier(model_type: str, overrides: str | None, needs: ImageModelNeeds) -> torch.nn.Module:
    """A model with fresh weights, or with those of the folder that `model_type` names. StepError when it cannot be.

    Settings come, each taking precedence over those before it, from transformers, from the table for small images,
    from the dataset, and from `overrides`.
    """
    settings = parse_overrides(overrides)
    if (Path(model_type) / _CONFIG_FILE).is_file():
        return _from_folder(Path(model_type), settings, needs)
    if "/" in model_type or Path(model_type).exists():
        raise StepError(f"--model-type {model_type}: there is no folder of that name with a {_CONFIG_FILE} in it")

    from transformers import AutoConfig, AutoModelForImageClassification

    _refuse_unknown_type(model_type)
    defaults = AutoConfig.for_model(model_type)
    _refuse_unknown_settings(settings, defaults)
    small = small_image_settings(model_type, max(needs.height, needs.width))
    settings = {**small, **needs.settings_of(defaults), **settings}
    return _build(
        model_type,
        lambda: AutoModelForImageClassification.from_config(AutoConfig.for_model(model_type, **settings)),
    )


def load_image_classifier(folder: Path, needs: ImageModelNeeds) -> torch.nn.Module:
    """A trained model. StepError when the folder holds none, or one for other images or classes."""
    for name in (_CONFIG_FILE, _WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise StepError(f"{folder} holds no trained model: {name} is missing")
    model = _pretrained(folder, {})
    config: Any = model.config
    if config.num_labels != len(needs.classes):
        raise StepError(f"the model in {folder} has {config.num_labels} classes; the dataset has {len(needs.classes)}")
    channels = getattr(config, "num_channels", needs.channels)
    if channels != needs.channels:
        raise StepError(f"the model in {folder} takes {channels}-channel images; the dataset's have {needs.channels}")
    return model


def parse_overrides(text: str | None) -> dict[str, Any]:
    """The JSON object of --model-overrides. StepError says where it is not one."""
    if text is None or not text.strip():
        return {}
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as failure:
        raise StepError(f"--model-overrides is not valid JSON: {failure}: {text}") from None
    if not isinstance(settings, dict):
        raise StepError(f'--model-overrides must be a JSON object such as {{"depths": [2, 2]}}, not {text}')
    return settings


def _from_folder(folder: Path, settings: Mapping[str, Any], needs: ImageModelNeeds) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForImageClassification

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, KeyError, TypeError, OSError) as failure:
        raise StepError(f"--model-type {folder}: its {_CONFIG_FILE} cannot be used: {_first_line(failure)}") from None
    _refuse_unknown_settings(settings, config)
    for name, value in {**needs.settings_of(config), **settings}.items():
        setattr(config, name, value)
    if (folder / _WEIGHTS_FILE).is_file():
        # A head for other classes than the dataset's is replaced by a new one.
        return _pretrained(folder, {"config": config, "ignore_mismatched_sizes": True})
    return _build(str(folder), lambda: AutoModelForImageClassification.from_config(config))


def _pretrained(folder: Path, options: Mapping[str, Any]) -> torch.nn.Module:
    from transformers import AutoModelForImageClassification

    def load() -> Any:
        return AutoModelForImageClassification.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, **options
        )

    return _build(str(folder), load)


def _build(what: str, build: Callable[[], Any]) -> torch.nn.Module:
    """Build a model; transformers answers settings that do not fit together with all kinds of exceptions."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # a job's log is no terminal
    try:
        model: torch.nn.Module = build()
    except Exception as failure:
        raise StepError(f"transformers cannot build the model {what}: {_first_line(failure)}") from None
    return model


def _refuse_unknown_type(model_type: str) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES as known

    if model_type not in known:
        close = difflib.get_close_matches(model_type, known, n=3)
        meant = f"did you mean {' or '.join(close)}?" if close else f"there is {', '.join(sorted(known))}"
        raise StepError(f"--model-type {model_type!r} is no image classifier of this version of transformers; {meant}")


def _refuse_unknown_settings(settings: Mapping[str, Any], config: Any) -> None:
    """transformers itself takes any name in silence, and a misspelt setting would change nothing."""
    known = [name for name in config.to_dict() if not name.startswith("_")]
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise StepError(f"--model-overrides: {config.model_type} has no setting {name!r}{meant}")


def _first_line(failure: BaseException) -> str:
    return next((line for line in str(failure).splitlines() if line.strip()), type(failure).__name__)
