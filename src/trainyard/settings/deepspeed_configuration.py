"""What a training takes from DeepSpeed's configuration: which of its keys become settings, and what is refused.

The step and the linter read the same tables. Only the standard library is imported here.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trainyard.settings.step_fields import StepField
from trainyard.settings.suggestions import closest
from trainyard.settings.written_settings import SettingValue, value_of_text

AUTO = "auto"
"""Stands for the step's own setting, as for transformers; elsewhere for DeepSpeed's default."""
MAKE_THEM_AGREE = 'write "auto" there, or change the step\'s setting'
RENDERED_HEADER = "_rendered"

_FROM_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_PRECISIONS = ("bf16", "fp16")
_BECOME_SETTINGS = (*_FROM_BATCH, *_PRECISIONS, "gradient_clipping", "optimizer", "scheduler")

_PASSED_ON = frozenset(
    {
        *("zero_optimization", "data_types", "communication_data_type", "gradient_predivide_factor"),
        *("prescale_gradients", "steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state"),
        *("comms_logger", "flops_profiler", "disable_allgather", "log_level"),
        *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"),
    }
)
"""What is passed on to DeepSpeed, beside what follows from the step's settings."""
_KNOWN = _PASSED_ON | {*_BECOME_SETTINGS}

_REFUSED: Mapping[str, str] = {
    "activation_checkpointing": "use --activation-checkpointing true, which works for every model",
    "compile": "use --compile true",
    "checkpoint": "the step writes its own checkpoints, which every engine and world size can read",
    "torch_autocast": 'set --precision, and bf16.enabled or fp16.enabled to "auto"',
    "managed_gradient_accumulation": "the step itself decides when gradients are complete",
    "gradient_allreduce_op": "the step computes exact means, which need DeepSpeed's default",
}
"""What contradicts how the step works, and what to use instead."""

_SECTIONS = (
    *("zero_optimization", "bf16", "fp16", "data_types", "comms_logger", "flops_profiler", "optimizer"),
    *("scheduler", "optimizer.params", "scheduler.params"),
)
"""What is an object."""

_ONE_ADAMW = "the step has one AdamW, for every engine"
_LINEAR = "the step's learning rate rises along a line from zero"
_ONLY: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "zero_optimization.stage": ((0, 1, 2, 3), "DeepSpeed has these stages"),
    "zero_optimization.offload_optimizer.device": (("none", "cpu"), "the step keeps no state on a local disk"),
    "zero_optimization.offload_param.device": (("none", "cpu"), "the step keeps no parameters on a local disk"),
    "zero_optimization.offload_optimizer.ratio": ((1, 1.0), "the step keeps the whole state in one place"),
    "zero_optimization.offload_optimizer.super_offload": ((False,), "it needs an optimizer of its own"),
    "zero_optimization.zenflow": ((None,), "it needs an optimizer of its own"),
    "zero_optimization.zero_hpz_partition_size": ((1,), "a checkpoint has one copy of each parameter"),
    "zero_optimization.compute_grad_norm": ((True,), "steps whose gradient is not finite are recognized by its norm"),
    "zero_allow_untested_optimizer": ((True, False), "the step's optimizer is one that DeepSpeed knows"),
    "zero_force_ds_cpu_optimizer": ((False,), _ONE_ADAMW),
    "bf16.check_grad_overflow": ((True,), "steps whose gradient is not finite must be skipped"),
    "bf16.immediate_grad_update": ((False,), "it is for an optimizer that the step does not use"),
    "bf16.bf16_master_weights_and_grads": ((False,), "masters are fp32, in every engine"),
    "bf16.bf16_optimizer_states": ((False,), "the optimizer's state is fp32, in every engine"),
    "fp16.fp16_master_weights_and_grads": ((False,), "masters are fp32, in every engine"),
    "optimizer.type": (("AdamW", "Adam"), _ONE_ADAMW),
    "optimizer.params.adam_w_mode": ((True,), "the step's weight decay is decoupled, as AdamW's is"),
    "optimizer.params.amsgrad": ((False,), _ONE_ADAMW),
    "optimizer.params.bias_correction": ((True,), _ONE_ADAMW),
    "optimizer.params.maximize": ((False,), "the step minimizes the loss"),
    "scheduler.type": (("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"), "set --learning-rate-schedule for others"),
    "scheduler.params.warmup_type": (("linear",), _LINEAR),
    "scheduler.params.warmup_min_lr": ((0, 0.0), _LINEAR),
    "scheduler.params.warmup_min_ratio": ((0, 0.0), _LINEAR),
    "scheduler.params.last_batch_iteration": ((-1,), "the step itself continues from its checkpoints"),
}
"""Settings of which the step supports only some values, and why."""
_HOW_IT_IS_DONE = ("adam_w_mode", "amsgrad", "bias_correction", "maximize", "torch_adam", "fused", "foreach")
_PARAMETERS: Mapping[str, frozenset[str]] = {
    "optimizer": frozenset({"lr", "betas", "eps", "weight_decay", "set_grad_none", *_HOW_IT_IS_DONE}),
    "scheduler": frozenset(
        {
            *("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps"),
            *("warmup_min_ratio", "cos_min_ratio", "last_batch_iteration"),
        }
    ),
}
"""What the `params` of a section may be."""

_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_BY_PATH: Mapping[str, str] = {
    "gradient_clipping": "gradient_clip_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.weight_decay": "weight_decay",
    "optimizer.params.eps": "adam_epsilon",
    "scheduler.params.warmup_max_lr": "learning_rate",
    "scheduler.params.warmup_num_steps": "warmup_steps",
    "scheduler.params.total_num_steps": "max_steps",
    "scheduler.params.cos_min_ratio": "minimum_learning_rate_fraction",
}
"""Which setting a key becomes. Of two keys for the same, the later one counts, as for DeepSpeed."""

_ADAMW_DEFAULTS: Mapping[str, Any] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
"""What DeepSpeed's Adam takes where nothing is given. Source: DeepSpeed 0.19.8, deepspeed/ops/adam/fused_adam.py."""
_SCHEDULER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "WarmupLR": {"warmup_num_steps": 1000},
    "WarmupDecayLR": {"warmup_num_steps": 1000},
    "WarmupCosineLR": {"warmup_num_steps": 1000, "cos_min_ratio": 0.0001},
}
"""The same of its schedules. Source: DeepSpeed 0.19.8, deepspeed/runtime/lr_schedules.py."""


class ConfiguredSetting(NamedTuple):
    """A setting of the step that the configuration gives. It counts where the step is not given another."""

    name: str
    value: Any
    """None where it follows from the number of processes, and that is not known."""
    path: str
    """The key that says so, as `optimizer.params.lr`."""
    is_written: bool = True
    """False for DeepSpeed's default in a section that is there: another value of the step does not contradict it."""

    def __str__(self) -> str:
        return f"{self.path} gives {self.name} {in_json(self.value)}"


class Refusal(NamedTuple):
    """What the step refuses of a configuration."""

    path: str
    message: str
    is_unknown: bool = False
    """Whether the step does not know the key at all."""


def configured_settings(config: Mapping[str, Any], world_size: int | None) -> dict[str, ConfiguredSetting]:
    """Return the settings that a configuration without refusals gives, by name; none for what is "auto"."""
    found: dict[str, ConfiguredSetting] = {}
    leaves = dict(leaves_of(_with_defaults(config)))
    written = dict(leaves_of(config))
    for path, name in _BY_PATH.items():
        if leaves.get(path, AUTO) == AUTO or (name in found and path not in written):
            continue
        found[name] = ConfiguredSetting(name, leaves[path], path, is_written=path in written)
    betas = leaves.get("optimizer.params.betas")
    for index, name in enumerate(("adam_beta1", "adam_beta2")):
        path = "optimizer.params.betas"
        if isinstance(betas, list) and len(betas) == 2 and betas[index] != AUTO:
            found[name] = ConfiguredSetting(name, betas[index], path, is_written=path in written)
    if schedule := _SCHEDULES.get(str(leaves.get("scheduler.type"))):
        found["learning_rate_schedule"] = ConfiguredSetting("learning_rate_schedule", schedule, "scheduler.type")
    for precision in _PRECISIONS:
        if leaves.get(f"{precision}.enabled") is True:
            found["precision"] = ConfiguredSetting("precision", precision, f"{precision}.enabled")
    return found | {each.name: each for each in _batch_sizes(config, world_size)}


def value_of_configured(field: StepField, configured: ConfiguredSetting) -> SettingValue:
    """Return what the configuration gives a setting, by the setting's type. ValueError says what is expected."""
    text = str(configured.value)
    if isinstance(configured.value, float) and configured.value.is_integer() and field.type == "integer":
        text = str(int(configured.value))
    return value_of_text(field, text)


def refusals(config: Mapping[str, Any], *, precision: str | None, compiled: bool) -> Iterator[Refusal]:
    """Yield what the step refuses of a configuration, whatever its other settings.

    `precision` is the step's, None where it is not known.
    """
    for key in config:
        if key in _REFUSED:
            yield Refusal(key, f"{key} is not supported: {_REFUSED[key]}; remove it")
        elif key not in _KNOWN and key != RENDERED_HEADER:
            yield Refusal(key, f"unknown key {key}{did_you_mean(key, _KNOWN)}", is_unknown=True)
    for path in _SECTIONS:
        section = _at(config, path)
        if section is not None and not isinstance(section, dict):
            yield Refusal(path, f"{path} is {in_json(section)}; expected a JSON object")
    for section, known in _PARAMETERS.items():
        params = _at(config, f"{section}.params")
        for key in params if isinstance(params, dict) else ():
            if key not in known:
                path = f"{section}.params.{key}"
                yield Refusal(path, f"unknown key {path}{did_you_mean(key, known)}", is_unknown=True)
    for path, (values, reason) in _ONLY.items():
        value = _at(config, path, values[0])
        if value != AUTO and not any(is_same(value, each) for each in values):
            one_of = " or ".join(dict.fromkeys(map(in_json, values)))
            yield Refusal(path, f"{path} is {in_json(value)}; only {one_of} is supported: {reason}")
    betas = _at(config, "optimizer.params.betas", AUTO)
    if betas != AUTO and not (isinstance(betas, list) and len(betas) == 2):
        path = "optimizer.params.betas"
        yield Refusal(path, f"{path} is {in_json(betas)}; expected two numbers, such as [0.9, 0.999]")
    yield from _refused_together(config, precision, compiled)


def _refused_together(config: Mapping[str, Any], precision: str | None, compiled: bool) -> Iterator[Refusal]:
    stage = _at(config, "zero_optimization.stage", 0)
    if precision == "bf16" and stage == 1 and _at(config, "data_types.grad_accum_dtype") == "fp32":
        yield Refusal(
            "data_types.grad_accum_dtype",
            "data_types.grad_accum_dtype cannot be fp32 in ZeRO stage 1, which would need an optimizer that the step "
            "does not use; use stage 2, or remove it",
        )
    if compiled and stage == 3:
        yield Refusal(
            "zero_optimization.stage",
            "--compile true does not work with zero_optimization.stage 3, whose hooks cannot be compiled; use stage 2, "
            "or train_fsdp",
        )
    disabled = f"{precision}.enabled"
    if precision in _PRECISIONS and _at(config, disabled) is False:
        yield Refusal(disabled, contradiction(disabled, False, True, f"--precision {precision}"))


def contradiction(path: str, value: Any, expected: Any, source: str) -> str:
    """Say that the configuration has a value, and the step another, which comes from a source."""
    return f"{path} is {in_json(value)}, but the step has {in_json(expected)} ({source}); {MAKE_THEM_AGREE}"


def leaves_of(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is not an object, with its path such as `bf16.enabled`."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from leaves_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def is_same(value: Any, other: Any) -> bool:
    """Return whether two values are the same; true is not 1."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def did_you_mean(key: str, known: frozenset[str]) -> str:
    """Return the end of a message on an unknown key."""
    close = closest(key, sorted(known))
    return f"; did you mean {close}?" if close else f"; expected one of {', '.join(sorted(known))}"


def in_json(value: Any) -> str:
    """Return a value as the configuration would have it."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _batch_sizes(config: Mapping[str, Any], world_size: int | None) -> Iterator[ConfiguredSetting]:
    """Of the sizes that multiply out, two give the third, as for DeepSpeed."""
    total, micro, steps = (config[key] if type(config.get(key)) is int else None for key in _FROM_BATCH)
    if total is not None:
        yield ConfiguredSetting("global_batch_size", total, "train_batch_size")
    elif micro is not None and steps is not None:
        product = micro * steps * world_size if world_size else None
        yield ConfiguredSetting("global_batch_size", product, "gradient_accumulation_steps")
    if micro is not None:
        yield ConfiguredSetting("micro_batch_size", micro, "train_micro_batch_size_per_gpu")
    elif total is not None and steps is not None and steps > 0:
        quotient = total // (steps * world_size) if world_size else None
        yield ConfiguredSetting("micro_batch_size", quotient, "gradient_accumulation_steps")


def _with_defaults(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the optimizer and the scheduler with what DeepSpeed takes where they give nothing."""
    filled = dict(config)
    optimizer, scheduler = config.get("optimizer"), config.get("scheduler")
    if isinstance(optimizer, dict):
        filled["optimizer"] = {**optimizer, "params": {**_ADAMW_DEFAULTS, **(optimizer.get("params") or {})}}
    if isinstance(scheduler, dict):
        defaults = _SCHEDULER_DEFAULTS.get(str(scheduler.get("type")), {})
        filled["scheduler"] = {**scheduler, "params": {**defaults, **(scheduler.get("params") or {})}}
    return filled


def _at(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    found: Any = config
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return default
        found = found[key]
    return found
