"""DeepSpeed's configuration file: "auto" is replaced from the step's settings, contradictions are errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.files import os_errors_name
from trainyard.settings.steps.training import TrainDeepSpeed
from trainyard.settings.suggestions import closest
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import parse_json

_AUTO = "auto"
_RENDERED_HEADER = "_rendered"

_PASSED_ON = frozenset(
    {
        *("zero_optimization", "bf16", "fp16", "data_types", "communication_data_type", "gradient_predivide_factor"),
        *("prescale_gradients", "steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state"),
        *("comms_logger", "flops_profiler", "disable_allgather", "log_level"),
    }
)
"""What is passed on to DeepSpeed, beside what follows from the step's settings."""

_REFUSED: Mapping[str, str] = {
    "optimizer": "the step has its own AdamW, also for offload; set --learning-rate and --weight-decay",
    "scheduler": "the step has its own schedule; set --learning-rate and --warmup-fraction",
    "activation_checkpointing": "use --activation-checkpointing true, which works for every model",
    "compile": "use --compile true",
    "checkpoint": "the step writes its own checkpoints, which every engine and world size can read",
    "torch_autocast": 'set --precision, and bf16.enabled or fp16.enabled to "auto"',
    "managed_gradient_accumulation": "the step itself decides when gradients are complete",
    "gradient_allreduce_op": "the step computes exact means, which need DeepSpeed's default",
    "zero_allow_untested_optimizer": "the step sets it",
    "zero_force_ds_cpu_optimizer": "the step sets it",
}
"""What contradicts how the step works, and what to use instead."""

_SECTIONS = frozenset({"zero_optimization", "bf16", "fp16", "data_types", "comms_logger", "flops_profiler"})
"""The keys whose value is an object."""

_ONLY: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "zero_optimization.stage": ((0, 1, 2, 3), "DeepSpeed has these stages"),
    "zero_optimization.offload_optimizer.device": (("none", "cpu"), "the step keeps no state on a local disk"),
    "zero_optimization.offload_param.device": (("none", "cpu"), "the step keeps no parameters on a local disk"),
    "zero_optimization.offload_optimizer.ratio": ((1, 1.0), "the step keeps the whole state in one place"),
    "zero_optimization.offload_optimizer.super_offload": ((False,), "it needs an optimizer of its own"),
    "zero_optimization.zenflow": ((None,), "it needs an optimizer of its own"),
    "zero_optimization.zero_hpz_partition_size": ((1,), "a checkpoint has one copy of each parameter"),
    "zero_optimization.compute_grad_norm": ((True,), "steps whose gradient is not finite are recognized by its norm"),
    "bf16.check_grad_overflow": ((True,), "steps whose gradient is not finite must be skipped"),
    "bf16.immediate_grad_update": ((False,), "it is for an optimizer that the step does not use"),
    "bf16.bf16_master_weights_and_grads": ((False,), "masters are fp32, in every engine"),
    "bf16.bf16_optimizer_states": ((False,), "the optimizer's state is fp32, in every engine"),
    "fp16.fp16_master_weights_and_grads": ((False,), "masters are fp32, in every engine"),
}
"""Settings of which the step supports only some values, and why."""


def read_deepspeed_config(settings: TrainDeepSpeed, batch: BatchArithmetic) -> dict[str, Any]:
    """Return the configuration for DeepSpeed. StepError names the file, the key, its value and what is expected."""
    file = settings.deepspeed_config
    config = read_config_file(file)
    required = _from_settings(settings, batch)
    _refuse_unknown(file, config, known={*_PASSED_ON, *(path.split(".")[0] for path in required)})
    for path, value in _leaves(config):
        if value == _AUTO:
            continue
        if path in required and not _is_same(value, required[path][0]):
            expected, source = required[path]
            raise StepError(
                f'{file}: {path} is {_json(value)}, but the step has {_json(expected)} ({source}); write "auto" there, '
                "or change the step's setting"
            )
        if path in _ONLY and not any(_is_same(value, each) for each in _ONLY[path][0]):
            values, reason = _ONLY[path]
            one_of = " or ".join(dict.fromkeys(map(_json, values)))
            raise StepError(f"{file}: {path} is {_json(value)}; only {one_of} is supported: {reason}")
    resolved = _without_auto(config)
    for path, (value, _) in required.items():
        _set(resolved, path, value)
    resolved.setdefault("zero_optimization", {}).setdefault("stage", 0)
    _sum_in_fp32(file, resolved)
    return resolved


def _from_settings(settings: TrainDeepSpeed, batch: BatchArithmetic) -> dict[str, tuple[Any, str]]:
    """Return what the configuration must have, and from which setting it follows."""
    precision = f"--precision {settings.precision}"
    return {
        "train_batch_size": (batch.global_batch_size, f"--global-batch-size {batch.global_batch_size}"),
        "train_micro_batch_size_per_gpu": (batch.micro_batch_size, f"--micro-batch-size {batch.micro_batch_size}"),
        "gradient_accumulation_steps": (batch.accumulation_steps, str(batch)),
        "gradient_clipping": (settings.gradient_clip_norm, f"--gradient-clip-norm {settings.gradient_clip_norm:g}"),
        "bf16.enabled": (settings.precision == "bf16", precision),
        "fp16.enabled": (settings.precision == "fp16", precision),
    }


def read_config_file(file: Path) -> dict[str, Any]:
    """Return what a configuration file holds, without the header of a rendered one. StepError if it is not one."""
    with os_errors_name(file):
        text = file.read_bytes()
    config = parse_json(text, file)
    if not isinstance(config, dict):
        raise StepError(f"{file}: expected a JSON object, the form of a DeepSpeed configuration")
    for section in _SECTIONS & config.keys():
        if not isinstance(config[section], dict):
            raise StepError(f"{file}: {section} is {_json(config[section])}; expected a JSON object")
    config.pop(_RENDERED_HEADER, None)
    return config


def _refuse_unknown(file: Path, config: Mapping[str, Any], known: set[str]) -> None:
    for key in config:
        if key in _REFUSED:
            raise StepError(f"{file}: {key} is not supported: {_REFUSED[key]}; remove it")
        if key not in known:
            raise StepError(f"{file}: unknown key {key}{_did_you_mean(key, known)}")


def sums_micro_batches_in_bf16(config: Mapping[str, Any]) -> bool:
    """Return whether gradients of several micro-batches are added in bf16: DeepSpeed's stage 1 knows no other way."""
    stage, accumulation = config["zero_optimization"]["stage"], config["gradient_accumulation_steps"]
    return bool(config["bf16"]["enabled"] and stage == 1 and accumulation > 1)


def _sum_in_fp32(file: Path, config: dict[str, Any]) -> None:
    """Sum over ranks, and over micro-batches, in fp32 where DeepSpeed can, as the other engines do, unless the
    configuration sets another type."""
    if not config["bf16"]["enabled"]:
        return
    stage = config["zero_optimization"]["stage"]
    if stage == 1 and config.get("data_types", {}).get("grad_accum_dtype") == "fp32":
        raise StepError(
            f"{file}: data_types.grad_accum_dtype cannot be fp32 in ZeRO stage 1, which would need an optimizer that "
            "the step does not use; use stage 2, or remove it"
        )
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
                raise StepError(f"{file}: unknown key {name}.{key}{_did_you_mean(key, known)}")
        try:
            model(**section)
        except ValidationError as failure:
            first = failure.errors()[0]
            path = ".".join([name, *(str(part) for part in first["loc"])])
            raise StepError(f"{file}: {path} is {_json(first['input'])}: {first['msg']}") from None


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration without "auto": where the step sets nothing, it means DeepSpeed's default."""
    return {
        key: _without_auto(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if value != _AUTO
    }


def _set(config: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[key] = value


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values are the same; true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _did_you_mean(key: str, known: set[str]) -> str:
    close = closest(key, sorted(known))
    return f"; did you mean {close}?" if close else f"; expected one of {', '.join(sorted(known))}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
