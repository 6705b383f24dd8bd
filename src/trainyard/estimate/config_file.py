"""The shape of a model from its configuration: in closed form for known families, else counted on the meta device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError, unknown_name
from trainyard.estimate.architectures import FAMILIES, Architecture, from_settings, refuse_experts
from trainyard.estimate.meta_model import architecture_on_meta
from trainyard.foundation.suggestions import close_match


class BrokenConfig(UsageError):
    """A config.json that cannot be read, or that lacks what a model's size follows from."""


def read_config(file: Path) -> Architecture:
    """Return the model of a config.json as `save_pretrained` writes it; BrokenConfig if it is not one."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise BrokenConfig(f"{file}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise BrokenConfig(f"{file}: expected a JSON object, not {type(config).__name__}")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise BrokenConfig(f"{file}: no model_type; expected one of: {', '.join(FAMILIES)}")
    try:
        return architecture_of(model_type, config, str(file))
    except UsageError as error:
        raise BrokenConfig(f"{file}: {error}") from None


def architecture_of(model_type: str, settings: Mapping[str, Any], name: str) -> Architecture:
    """Return the model of a model type of transformers with these settings. UsageError for one that cannot be.

    A type that is one slip away from a known family is taken for a slip, before transformers is imported to ask.
    """
    refuse_experts(settings, name)
    if model_type in FAMILIES:
        return from_settings(model_type, settings, name)
    if close_match(model_type, FAMILIES):
        raise unknown_name("model_type", model_type, FAMILIES)
    return architecture_on_meta(model_type, settings, name)
