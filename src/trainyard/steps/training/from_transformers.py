"""Models from transformers: by model type or from a folder, sized to the dataset, never downloaded."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from trainyard.settings.files import file_sha256, os_errors_name
from trainyard.settings.quantities import first_names
from trainyard.settings.suggestions import closest
from trainyard.steps.runtime.errors import StepError, first_line
from trainyard.steps.runtime.files import CONFIG_FILE, parse_json, sha256_of_json
from trainyard.steps.runtime.imports import replaced
from trainyard.steps.runtime.world import World
from trainyard.steps.training.models_without_weights import (
    WEIGHTS_FILE,
    WEIGHTS_INDEX,
    leave_in_files,
    only_shapes_are_wanted,
    warn_of_differences,
    weights_may_stay_out,
    with_new_weights,
)
from trainyard.steps.training.new_weights import CannotDraw
from trainyard.steps.training.weights_to_files import write_tensors

# Before transformers is imported: a job must not wait for, or depend on, a server it was not told of.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
if not torch.cuda.is_available():
    # Where accelerate is installed, saving a model imports DeepSpeed, which would warn that it sees no accelerator.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

_WEIGHTS_FILES = (WEIGHTS_FILE, WEIGHTS_INDEX)
_PICKLED_WEIGHTS_FILES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
"""Never read: a pickle can run code."""


class ModelNeeds(ABC):
    """What the dataset decides about a model, for one of transformers' kinds of models."""

    kind: str
    """In a sentence: "unknown image classifier"."""

    auto_class: str
    types_table: str
    """The names of transformers' class for models of this kind, and of its table of their types."""

    pretrained_options: Mapping[str, Any] = {}
    """Options of `from_pretrained` when training starts from weights."""

    head_may_be_new: bool = False
    """Whether training may start from weights without a head, such as the classes of other data."""

    @abstractmethod
    def settings_of(self, config: Any, *, has_weights: bool) -> Mapping[str, Any]:
        """Return what the dataset decides, by those of transformers' names that this configuration has."""

    @abstractmethod
    def defaults_of(self, config: Any) -> Mapping[str, Any]:
        """Return what replaces transformers' defaults for a model type."""

    @abstractmethod
    def require_fit(self, config: Any, what: str) -> None:
        """Raise StepError if a model, called `what`, is for other data."""


def new_model(model_type: str, overrides: str | None, needs: ModelNeeds) -> torch.nn.Module:
    """Return a model with fresh weights, or with those of the folder `model_type`. Raise StepError if invalid.

    Settings come, each taking precedence over those before it, from transformers, from the needs' defaults, from the
    dataset, and from `overrides`.
    """
    settings = parse_overrides(overrides)
    if (folder := model_folder(model_type)) is not None:
        return _from_folder(folder, settings, needs)

    from transformers import AutoConfig

    _refuse_unknown_type(model_type, needs)
    defaults = AutoConfig.for_model(model_type)
    settings = {
        **needs.defaults_of(defaults),
        **needs.settings_of(defaults, has_weights=False),
        **_own_names(settings, defaults),
    }

    def build() -> Any:
        return _from_config(AutoConfig.for_model(model_type, **settings), needs)

    model: torch.nn.Module = with_new_weights(lambda: _build(model_type, build))
    config: Any = model.config
    needs.require_fit(config, f"--model-overrides {overrides}: the model")
    return model


def model_folder(model_type: str | None) -> Path | None:
    """Return the folder that a model type names, if it names one with a model."""
    if model_type is None or not (Path(model_type) / CONFIG_FILE).is_file():
        return None
    return Path(model_type)


def model_digest(folder: Path, world: World | None = None) -> str:
    """Return a SHA-256 of a model's configuration and weights. Every rank of a world calls it, and reads a part."""
    names = sorted(file.name for file in folder.iterdir() if file.name == CONFIG_FILE or file.suffix == ".safetensors")
    rank, size = (0, 1) if world is None else (world.rank, world.size)
    own = {name: file_sha256(folder / name) for name in names[rank::size]}
    parts = [own] if world is None else world.gather(own)
    digests = {name: digest for part in parts for name, digest in part.items()}
    return sha256_of_json(digests)


def load_model(folder: Path, needs: ModelNeeds) -> torch.nn.Module:
    """Return a trained model. Raise StepError if the folder holds none, or one for other data."""
    if not (folder / CONFIG_FILE).is_file():
        raise StepError(f"{folder} is not a trained model: {CONFIG_FILE} is missing")
    if not has_weights(folder):
        raise StepError(f"{folder} is not a trained model: {WEIGHTS_FILE} is missing")
    model = _with_weights(folder, _config_of(folder), needs, {}, head_may_be_new=False)
    config: Any = model.config
    needs.require_fit(config, f"the model in {folder}")
    return model


def parse_overrides(text: str | None) -> dict[str, Any]:
    """Return the JSON object of --model-overrides. Raise StepError if it is not one."""
    if text is None or not text.strip():
        return {}
    settings = parse_json(text, "--model-overrides")
    if not isinstance(settings, dict):
        raise StepError(f'--model-overrides must be a JSON object such as {{"depths": [2, 2]}}; found {text}')
    return settings


def save_model(model: Any, folder: Path, shard_bytes: int) -> None:
    """Write a model of transformers for its `from_pretrained` to read, in files of at most so many bytes of weights.

    A tensor larger than that has a file of its own. Raise StepError if the disk is full.
    """
    from transformers import modeling_utils

    for name in _WEIGHTS_FILES:  # left from an earlier save in files of another size, either would be read first
        (folder / name).unlink(missing_ok=True)
    with replaced(modeling_utils, "safe_save_file", lambda tensors, file, metadata: write_tensors(tensors, Path(file))):
        model.save_pretrained(folder, max_shard_size=shard_bytes)


def _from_folder(folder: Path, settings: Mapping[str, Any], needs: ModelNeeds) -> torch.nn.Module:
    with_weights = has_weights(folder)
    config = _config_of(folder)
    of_dataset = needs.settings_of(config, has_weights=with_weights)
    for name, value in {**of_dataset, **_own_names(settings, config)}.items():
        setattr(config, name, value)
    needs.require_fit(config, f"--model-type {folder}: the model")
    if not with_weights:
        model: torch.nn.Module = with_new_weights(lambda: _build(str(folder), lambda: _from_config(config, needs)))
        return model
    options = {"config": config, **needs.pretrained_options}
    return _with_weights(folder, config, needs, options, head_may_be_new=needs.head_may_be_new)


def _with_weights(
    folder: Path, config: Any, needs: ModelNeeds, options: Mapping[str, Any], *, head_may_be_new: bool
) -> torch.nn.Module:
    """Return the model with its weights, or without them where they stay in files, or are not wanted."""

    def without_weights() -> torch.nn.Module:
        return _build(str(folder), lambda: _from_config(config, needs))

    if weights_may_stay_out():
        model: torch.nn.Module = leave_in_files(folder, config, without_weights)
        return model
    if only_shapes_are_wanted():
        return without_weights()
    return _pretrained(folder, needs, options, head_may_be_new=head_may_be_new)


def _config_of(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as failure:  # whatever a file of the user's makes transformers raise
        raise StepError(f"{folder}: its {CONFIG_FILE} cannot be used: {first_line(failure)}") from None


def has_weights(folder: Path) -> bool:
    """Return whether a folder has weights to start from. Raise StepError for weights in a format that is not read."""
    if any((folder / name).is_file() for name in _WEIGHTS_FILES):
        if not (folder / WEIGHTS_FILE).is_file():
            _check_weights_index(folder)
        return True
    for name in _PICKLED_WEIGHTS_FILES:
        if (folder / name).is_file():
            raise StepError(
                f"{folder / name} is not read, because a pickle can run code: let transformers write the weights as "
                f"{WEIGHTS_FILE} (`model.save_pretrained(folder)`), or remove it to train a new model"
            )
    return False


def _check_weights_index(folder: Path) -> None:
    """Raise StepError for an index that names anything but safetensors files in its own folder."""
    file = folder / WEIGHTS_INDEX
    with os_errors_name(file):
        index = parse_json(file.read_bytes(), file)
    names = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(names, dict) or not names:
        raise StepError(f"{file} has no weight_map, the file of each tensor")
    for tensor, name in names.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise StepError(f"{file}: {tensor} is in {name!r}; expected the name of a .safetensors file in {folder}")


def _pretrained(
    folder: Path, needs: ModelNeeds, options: Mapping[str, Any], *, head_may_be_new: bool
) -> torch.nn.Module:
    """Return the model with its weights. Raise StepError if some are missing: transformers would make them up."""
    info: dict[str, Any] = {}

    def build() -> Any:
        model, found = _auto(needs).from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
        info.update(found)
        return model

    model = _build(str(folder), build)
    # Not among them: an output layer that is tied to the embeddings.
    missing, unused = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    in_base = [name for name in missing if name.startswith(f"{model.base_model_prefix}.")]
    if refused := (in_base if head_may_be_new else missing):
        lacking = f"{first_names(refused)} {'is' if len(refused) == 1 else 'are'} missing in the weights"
        also = f"; the weights have {first_names(unused)}, which the model lacks" if unused else ""
        raise StepError(f"{folder}: {lacking} of the model that {CONFIG_FILE} describes{also}")
    replaced = sorted(name for name, *_ in info["mismatched_keys"])
    warn_of_differences(folder, new=tuple(missing + replaced), unused=tuple(unused))
    return model


def _from_config(config: Any, needs: ModelNeeds) -> Any:
    return _auto(needs).from_config(config, trust_remote_code=False)


def _auto(needs: ModelNeeds) -> Any:
    import transformers

    return getattr(transformers, needs.auto_class)


def _build(what: str, build: Callable[[], Any]) -> torch.nn.Module:
    """Build a model in fp32. transformers raises all kinds of exceptions for settings that do not fit together."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # a job's log is not a terminal
    try:
        model: torch.nn.Module = build()
    except CannotDraw:
        raise
    except Exception as failure:
        raise StepError(f"transformers cannot build the model {what}: {first_line(failure)}") from None
    config: Any = model.config
    if hasattr(config, "auto_map"):
        # Names code in the folder, which is not run: nor may whoever loads the trained model be led to it.
        del config.auto_map
    return model.float()


def _refuse_unknown_type(model_type: str, needs: ModelNeeds) -> None:
    from transformers.models.auto import modeling_auto

    known = getattr(modeling_auto, needs.types_table)
    if model_type in known:
        return
    if "/" in model_type or Path(model_type).exists():
        raise StepError(
            f"--model-type {model_type}: expected a folder with a {CONFIG_FILE}, or a model type such as llama"
        )
    close = closest(model_type, known)
    meant = f"did you mean {close}?" if close else f"known: {', '.join(sorted(known))}"
    raise StepError(f"--model-type {model_type!r}: unknown {needs.kind} in this version of transformers; {meant}")


def _own_names(settings: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Return the overrides by the configuration's own names, such as `n_layer` for `num_hidden_layers`.

    transformers accepts any name, and a misspelt setting would change nothing: here it raises StepError. So does a
    negative count: -1 layers would be a model without any.
    """
    known = [name for name in config.to_dict() if not name.startswith("_")]
    own = {}
    for name, value in settings.items():
        own_name = config.attribute_map.get(name, name)
        if own_name not in known:
            close = closest(name, known)
            meant = f"; did you mean {close}?" if close else ""
            raise StepError(f"--model-overrides: {config.model_type} has no setting {name!r}{meant}")
        default = getattr(config, own_name, None)
        # Ids of tokens may be negative for "none".
        is_count = type(default) is int and default > 0 and not own_name.endswith("_id")
        if is_count and isinstance(value, int) and value < 0:
            raise StepError(f"--model-overrides: {name} is {value}; expected a number of at least 0")
        own[own_name] = value
    return own
