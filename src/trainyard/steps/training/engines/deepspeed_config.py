"""DeepSpeed's configuration file: what it sets of a training, "auto" replaced from the step's settings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.deepspeed_configuration import (
    AUTO,
    MAKE_THEM_AGREE,
    RENDERED_HEADER,
    configured_settings,
    contradiction,
    did_you_mean,
    in_json,
    is_same,
    leaves_of,
    refusals,
    value_of_configured,
)
from trainyard.settings.files import os_errors_name
from trainyard.settings.steps.training import TrainDeepSpeed
from trainyard.settings.task_fields import TaskError, fields_with_task
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import parse_json
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.settings_file import short_name

_SET_BY_STEP = ("optimizer", "scheduler")
"""What becomes settings of the step, and is not passed on."""


def with_configured_settings(given: GivenSettings[TrainDeepSpeed], world_size: int) -> GivenSettings[TrainDeepSpeed]:
    """Return the settings with those that the configuration file gives and the step was not given otherwise.

    StepError names the file and the key where it contradicts what the step was given, and what the step refuses.
    """
    file = given.step.deepspeed_config
    config = read_config_file(file)
    found = configured_settings(_supported(file, config, given.step), world_size)
    own: dict[str, Any] = {}
    task_values, origins = dict(given.task), dict(given.origins)
    try:
        own_fields, task_fields = fields_with_task(TrainDeepSpeed, given.step.task)
    except TaskError as error:
        raise StepError(f"--task {given.step.task}: {error}") from None
    for field in (*own_fields, *task_fields):
        configured = found.get(field.name)
        if configured is None:
            continue
        try:
            value = value_of_configured(field, configured)
        except ValueError as error:
            raise StepError(f"{file}: {configured.path}: {error}") from None
        if (origin := origins.get(field.name)) is not None:
            of_step = {**vars(given.step), **given.task}[field.name]
            if configured.is_written and not is_same(value, of_step):
                raise StepError(
                    f"{file}: {configured}, but the step has {in_json(of_step)} ({origin}); {MAKE_THEM_AGREE}"
                )
            continue
        target = own if field in own_fields else task_values
        target[field.name] = value
        origins[field.name] = f"{short_name(file)}: {configured.path}"
    return GivenSettings(dataclasses.replace(given.step, **own), task_values, origins)


def read_deepspeed_config(settings: TrainDeepSpeed, batch: BatchArithmetic) -> dict[str, Any]:
    """Return the configuration for DeepSpeed. StepError names the file, the key, its value and what is expected."""
    file = settings.deepspeed_config
    config = _supported(file, read_config_file(file), settings)
    precision = f"--precision {settings.precision}"
    # What the configuration must have, and from which setting it follows.
    required: dict[str, tuple[Any, str]] = {
        "train_batch_size": (batch.global_batch_size, f"--global-batch-size {batch.global_batch_size}"),
        "train_micro_batch_size_per_gpu": (batch.micro_batch_size, f"--micro-batch-size {batch.micro_batch_size}"),
        "gradient_accumulation_steps": (batch.accumulation_steps, str(batch)),
        "gradient_clipping": (settings.gradient_clip_norm, f"--gradient-clip-norm {settings.gradient_clip_norm:g}"),
        "bf16.enabled": (settings.precision == "bf16", precision),
        "fp16.enabled": (settings.precision == "fp16", precision),
    }
    for path, value in leaves_of(config):
        if value == AUTO or path not in required:
            continue
        # An invalid number was reported where the configuration was compared with the settings.
        is_text_of_number = isinstance(value, str) and isinstance(required[path][0], float)
        if not is_same(float(value) if is_text_of_number else value, required[path][0]):
            raise StepError(f"{file}: {contradiction(path, value, *required[path])}")
    resolved = _without_auto({key: value for key, value in config.items() if key not in _SET_BY_STEP})
    for path, (value, _) in required.items():
        *sections, key = path.split(".")
        functools.reduce(lambda section, name: section.setdefault(name, {}), sections, resolved)[key] = value
    resolved.setdefault("zero_optimization", {}).setdefault("stage", 0)
    _sum_in_fp32(resolved)
    return resolved


def _supported(file: Path, config: dict[str, Any], settings: TrainDeepSpeed) -> dict[str, Any]:
    """Return the configuration. StepError says what the step refuses of it first."""
    for refusal in refusals(config, precision=settings.precision, compiled=settings.compile):
        raise StepError(f"{file}: {refusal.message}")
    return config


def read_config_file(file: Path) -> dict[str, Any]:
    """Return what a configuration file holds, without the header of a rendered one. StepError if it is not one."""
    with os_errors_name(file):
        text = file.read_bytes()
    config = parse_json(text, file)
    if not isinstance(config, dict):
        raise StepError(f"{file}: expected a JSON object, the form of a DeepSpeed configuration")
    config.pop(RENDERED_HEADER, None)
    return config


def sums_micro_batches_in_bf16(config: Mapping[str, Any]) -> bool:
    """Return whether gradients of several micro-batches are added in bf16: DeepSpeed's stage 1 knows no other way."""
    stage, accumulation = config["zero_optimization"]["stage"], config["gradient_accumulation_steps"]
    return bool(config["bf16"]["enabled"] and stage == 1 and accumulation > 1)


def _sum_in_fp32(config: dict[str, Any]) -> None:
    """Sum over ranks, and over micro-batches, in fp32 where DeepSpeed can, as the other engines do, unless the
    configuration sets another type."""
    if not config["bf16"]["enabled"]:
        return
    stage = config["zero_optimization"]["stage"]
    if stage > 0:
        config.setdefault("communication_data_type", "fp32")
    if stage in (2, 3):
        config.setdefault("data_types", {}).setdefault("grad_accum_dtype", "fp32")


def check_sections(file: Path, config: Mapping[str, Any]) -> None:
    """Check the sections against DeepSpeed's own schema, once it is imported. StepError names the key."""
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from pydantic import ValidationError

    models = {"zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config}
    for name, model in models.items():
        section = config.get(name, {})
        known = {field.alias or key for key, field in model.model_fields.items()} | set(model.model_fields)
        for key in section:
            if key not in known:
                raise StepError(f"{file}: unknown key {name}.{key}{did_you_mean(key, frozenset(known))}")
        try:
            model(**section)
        except ValidationError as failure:
            first = failure.errors()[0]
            path = ".".join([name, *(str(part) for part in first["loc"])])
            raise StepError(f"{file}: {path} is {in_json(first['input'])}: {first['msg']}") from None


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration without "auto": where the step sets nothing, it means DeepSpeed's default."""
    return {
        key: _without_auto(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if value != AUTO
    }
