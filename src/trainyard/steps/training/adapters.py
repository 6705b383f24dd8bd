"""Low-rank adapters (LoRA, arXiv 2106.09685) beside the frozen weights of a base model, made and saved by peft."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from trainyard.settings.steps.training import Training
from trainyard.steps.data.dataset.manifest import Manifest
from trainyard.steps.runtime.errors import StepError, first_line
from trainyard.steps.runtime.files import find_model
from trainyard.steps.runtime.imports import from_extra, require_packages
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.engine import Engine
from trainyard.steps.training.fragments import tensors_of
from trainyard.steps.training.from_transformers import has_weights, model_digest, model_folder
from trainyard.steps.training.models_without_weights import (
    CannotLeaveOut,
    ModelWithoutWeights,
    model_without_weights,
    weights_may_stay_out,
    with_new_weights,
)
from trainyard.steps.training.precision import DTYPES
from trainyard.steps.training.tasks.chosen import ChosenTask, read_base_digest
from trainyard.steps.training.tasks.task import Task
from trainyard.steps.training.weights_to_files import Combined, Saving, write_tensors

ADAPTERS_FOLDER = "adapters"
"""Beside a model that they are merged into."""
_CONFIG_FILE, _WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_NAME = "default"
"""What peft calls adapters that were given no name."""
_ALL_LINEAR = "all-linear"


def check_tuning(settings: Training, chosen_task: ChosenTask) -> None:
    """StepError for adapters without a base model, or without the packages and the GPU that they need."""
    if settings.tuning == "full":
        if settings.merge_adapters:
            raise StepError("--merge-adapters true: --tuning full trains without adapters; choose lora or qlora")
        return
    require_packages(f"--tuning {settings.tuning}", from_extra("train"), "peft")
    if base_folder(chosen_task) is None:
        raise StepError(
            f"--tuning {settings.tuning} trains adapters beside the weights of a model: name it by --base-model, a "
            "folder with config.json and model.safetensors"
        )
    if settings.tuning == "qlora":
        if not torch.cuda.is_available():
            raise StepError("--tuning qlora computes with weights of 4 bits, which needs a GPU; choose lora")
        require_packages("--tuning qlora", from_extra("qlora"), "bitsandbytes")


def base_folder(chosen_task: ChosenTask) -> Path | None:
    """Return the folder with the weights that a task's model starts from, if there is one."""
    folder = model_folder(chosen_task.values().get("model_type"))
    return folder if folder is not None and has_weights(folder) else None


def new_model(task: Task, settings: Training) -> torch.nn.Module:
    """Return the task's model: with adapters beside frozen weights, if the settings say so.

    The adapters' first values depend on torch's seed only, and add nothing to what the model computes.
    """
    model: torch.nn.Module = with_new_weights(task.new_model)
    if settings.tuning == "full":
        return model
    from peft import LoraConfig, inject_adapter_in_model

    trained_whole = task.modules_trained_whole(model)
    if trained_whole and weights_may_stay_out():
        raise CannotLeaveOut("peft copies the modules that are trained whole")
    if settings.tuning == "qlora":
        _quantize(model)
    targets = settings.lora_targets.replace(" ", "")
    config = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=targets if targets == _ALL_LINEAR else targets.split(","),
        modules_to_save=trained_whole or None,
    )
    try:
        with _needless_warnings_hidden():
            inject_adapter_in_model(config, model, _NAME)
    except ValueError as failure:
        raise StepError(f"--lora-targets {settings.lora_targets}: {first_line(failure)}") from None
    for parameter in model.parameters():
        if parameter.requires_grad:
            # peft makes the adapters of 4-bit layers in the type these compute in, too coarse for small steps.
            parameter.data = parameter.data.float()
    if settings.merge_adapters:
        _require_own_weights(model)
    return model


def _require_own_weights(model: torch.nn.Module) -> None:
    """StepError names a layer whose adapters cannot be merged: another layer has the same weight without them."""
    from peft.tuners.lora import LoraLayer

    owners = Counter(weight for owner in model.modules() for weight in owner.parameters(recurse=False))
    for path, layer in model.named_modules():
        if isinstance(layer, LoraLayer) and any(owners[weight] > 1 for weight in layer.get_base_layer().parameters()):
            raise StepError(
                f"the adapters of {path} cannot be merged, since another layer has the same weight "
                "(tie_word_embeddings): keep the adapters by themselves, or train without these (--lora-targets)"
            )


@contextmanager
def _needless_warnings_hidden() -> Iterator[None]:
    with warnings.catch_warnings():
        # peft says of GPT-2's layers that it transposes them, as it should.
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")
        # It uses a name that transformers deprecates.
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)
        yield


def _quantize(model: torch.nn.Module) -> None:
    """Replace the linear layers of a model's blocks by ones of 4 bits (NF4, arXiv 2305.14314), in place.

    bitsandbytes rounds the weights when they move to the GPU.
    """
    import bitsandbytes

    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    for owner in list(model.modules()):
        for name, layer in owner.named_children():
            if type(layer) is not torch.nn.Linear or layer is head:
                continue
            dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
            small = bitsandbytes.nn.Linear4bit(
                layer.in_features, layer.out_features, layer.bias is not None, compute_dtype=dtype, quant_type="nf4"
            )
            small.weight = bitsandbytes.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
            if layer.bias is not None:
                small.bias = layer.bias
            setattr(owner, name, small)


def save_trained_model(task: Task, engine: Engine, settings: Training, still_at_work: Callable[[], None]) -> None:
    """Write what was trained: the model, its adapters, or the base model with the adapters merged and both.

    Every rank calls it. What goes wrong on one is raised on all.
    """
    dtype, task.shard_bytes = DTYPES[settings.save_dtype], settings.save_shard_mb * 1_000_000
    saving = Saving(engine, still_at_work)
    build = partial(new_model, task, settings)
    # Of a format of the user's own only their task knows what it holds.
    is_known = type(task).save_model.__module__.startswith("trainyard.")

    def save(model: torch.nn.Module) -> None:
        task.save_model(model, settings.model)

    if settings.tuning == "full":
        if not (is_known and saving.in_parts(build, save, dtype)):
            saving.whole(build, save, dtype)
        return
    folder = settings.model / ADAPTERS_FOLDER if settings.merge_adapters else settings.model
    if settings.merge_adapters:
        trained: ModelWithoutWeights | None = None
        if settings.tuning == "lora":
            trained = ModelWithoutWeights(engine.model if engine.replica is None else engine.replica, {})
        else:  # merged into the weights before they were rounded to 4 bits
            with suppress(CannotLeaveOut):
                trained = model_without_weights(partial(new_model, task, replace(settings, tuning="lora")))
        combined = _merged_by_layer(trained) if is_known and trained is not None else None
        if combined is None or not saving.in_parts(task.new_model, save, dtype, combined):
            saving.log_whole_model(task.new_model)
            saving.in_parts(build, lambda model: save_adapters(model, folder), torch.float32)
            saving.by_main(lambda: _with_adapters(task.new_model(), folder).merge_and_unload(), save, dtype)
    saving.in_parts(build, lambda model: save_adapters(model, folder), dtype)


def _merged_by_layer(trained: ModelWithoutWeights) -> dict[str, Combined] | None:
    """Return of what the tensors of the merged model consist that differ from the engine's, or are in files.

    None if some are shared.
    """
    from peft.tuners.lora import LoraLayer
    from peft.utils import ModulesToSaveWrapper

    found = {name: trained.weights.get(each, tuple(each.shape)) for name, each in tensors_of(trained.module).items()}
    combined = {
        name: Combined({name: part}, itemgetter(0)) for name, part in found.items() if not isinstance(part, tuple)
    }
    for path, layer in trained.module.named_modules():
        if isinstance(layer, ModulesToSaveWrapper):
            names = {name: f"modules_to_save.{_NAME}.{name}" for name in layer.modules_to_save[_NAME].state_dict()}
        elif isinstance(layer, LoraLayer):
            names = {name: f"base_layer.{name}" for name in layer.base_layer.state_dict()}
        else:
            continue
        for name, of_engine in names.items():
            parts = [of_engine]
            if isinstance(layer, LoraLayer) and name == "weight":
                parts = [part for part, _ in layer.named_parameters()]
            if not all(f"{path}.{part}" in found for part in parts):
                return None
            merge = partial(_merged, layer) if len(parts) > 1 else itemgetter(0)
            combined[f"{path}.{name}"] = Combined({f"{path}.{part}": found[f"{path}.{part}"] for part in parts}, merge)
    return combined


def _merged(layer: Any, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a layer's weight with the adapter merged by peft, given the values of its parameters in their order."""
    parameters = [torch.nn.Parameter(tensor, requires_grad=False) for tensor in values]
    twin = copy.deepcopy(layer, dict(zip(map(id, layer.parameters()), parameters, strict=True)))
    twin.merge()
    merged: torch.Tensor = twin.get_base_layer().weight.data
    return merged


def save_adapters(model: torch.nn.Module, folder: Path) -> None:
    """Write adapters as `peft.PeftModel.from_pretrained` reads them. StepError if the disk is full."""
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    configs: Any = model.peft_config
    config = configs[_NAME]
    config.inference_mode = True
    for name, value in vars(config).items():
        if isinstance(value, set):  # peft would write it in another order each time
            setattr(config, name, sorted(value))
    config.save_pretrained(folder)
    tensors = get_peft_model_state_dict(model, adapter_name=_NAME)
    # peft loads them into a model that it has wrapped twice.
    write_tensors({f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, folder / _WEIGHTS_FILE)


def load_trained_model(
    chosen_task: ChosenTask, manifest: Manifest, folder: Path, base_model: Path | None, *, merged: bool = False
) -> torch.nn.Module:
    """Return what a training step saved: a whole model, or the base model with its adapters, `merged` if asked for.

    StepError if the folder holds neither, or if the base model is missing.
    """
    if not is_adapters(folder):
        return chosen_task.on(manifest).load_model(folder)
    require_packages(f"adapters, as in {folder},", from_extra("train"), "peft")
    base = base_of_adapters(chosen_task, folder, base_model)
    wrapped = _with_adapters(chosen_task.starting_from(base).on(manifest).new_model(), folder)
    if merged:
        _require_own_weights(wrapped)
    model: torch.nn.Module = wrapped.merge_and_unload() if merged else wrapped.get_base_model()
    return model


def is_adapters(folder: Path) -> bool:
    """Return whether a training step saved only adapters in this folder."""
    return (folder / _CONFIG_FILE).is_file()


def base_of_adapters(chosen_task: ChosenTask, folder: Path, base_model: Path | None) -> Path:
    """Return the folder of the model that adapters were trained on. StepError if it is not known or not there."""
    base = base_folder(chosen_task) if base_model is None else find_model(base_model)
    if base is None:
        raise StepError(f"{folder} holds adapters: name the model that they were trained on by --base-model")
    return base


def require_base_of_adapters(
    chosen_task: ChosenTask, folder: Path, base_model: Path | None, world: World | None = None
) -> None:
    """StepError if adapters were trained on a model with other content. Every rank calls it."""
    if not is_adapters(folder):
        return
    base = base_of_adapters(chosen_task, folder, base_model)
    expected = read_base_digest(folder)
    if expected is not None and model_digest(base, world) != expected:
        raise StepError(
            f"{base} is not the model that the adapters in {folder} were trained on: its SHA-256 differs from the one "
            "beside them; name the right one by --base-model"
        )


def _with_adapters(model: torch.nn.Module, folder: Path) -> Any:
    """Return peft's wrapper around a base model with adapters. StepError if they are not for this model."""
    from peft import PeftModel
    from safetensors import SafetensorError

    try:
        with _needless_warnings_hidden():
            return PeftModel.from_pretrained(model, folder)
    except (ValueError, RuntimeError, KeyError, SafetensorError) as failure:
        raise StepError(f"the adapters in {folder} do not fit the model: {first_line(failure)}") from None
