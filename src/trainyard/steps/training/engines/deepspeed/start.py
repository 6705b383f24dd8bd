"""How a model becomes DeepSpeed's: its weights brought, its precision settled, its masters made."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.base import EngineParts
from trainyard.steps.training.engines.blocks import find_blocks, prepare_blocks
from trainyard.steps.training.engines.deepspeed.masters import MasterRange, master_ranges
from trainyard.steps.training.engines.rank_zero_model import ModelFromRankZero
from trainyard.steps.training.fragments import refuse_other_layouts
from trainyard.steps.training.optimizer import begin_state, stateless_optimizer

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_LARGEST_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's own size of what is summed at once: 2 GiB of buffer, also where a model has less to sum."""


@dataclass(frozen=True)
class StartedDeepSpeed:
    """What came of it."""

    stage: int
    engine: Any
    """DeepSpeed's wrapper, around `module`."""
    module: torch.nn.Module
    zero: Any
    """DeepSpeed's optimizer, around `adamw`; in stage 0 `adamw` itself."""
    adamw: torch.optim.AdamW
    shapes: Mapping[str, tuple[int, ...]]
    """Of whole parameters: in stage 3 they themselves are empty between steps."""
    masters: Mapping[str, MasterRange] = field(default_factory=dict)
    """Of this rank, by parameter; none in stage 0, where parameters are fp32 themselves."""


def start_deepspeed(parts: EngineParts, config: dict[str, Any]) -> StartedDeepSpeed:
    """Build the model from rank 0's weights and hand it to DeepSpeed. Its optimizer's state exists afterwards."""
    deepspeed = _join(parts.world)
    stage: int = config["zero_optimization"]["stage"]
    dtype = _DTYPES[parts.settings.precision]
    built = ModelFromRankZero(parts.new_model, parts.world)
    module = built.module
    refuse_other_layouts(module)
    refuse_frozen(module)
    weights = dict(module.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in weights.items()}
    config = _sized(config, sum(math.prod(shape) for shape in shapes.values()))
    prepare_blocks(module, parts.settings)
    _compute_in(module, stage, dtype, parts.world.device)

    for part in [*find_blocks(module), module]:
        built.materialize(part)
        if stage == 3:
            # At once, so that no rank ever holds the whole model.
            _cast_parameters(part, dtype)
            deepspeed.zero.Init(module=part, config_dict_or_path=config)
    adamw = _new_adamw(module, shapes, parts)
    engine, zero, _, _ = deepspeed.initialize(model=module, optimizer=adamw, config=config, dist_init_required=False)
    if stage == 0:
        for parameter in module.parameters():
            begin_state(adamw, parameter)
        return StartedDeepSpeed(stage, engine, module, zero, adamw, shapes)

    masters = master_ranges(zero, stage, dict(module.named_parameters()))
    for flat in {id(own.flat): own.flat for own in masters.values()}.values():
        begin_state(adamw, flat)
    if dtype is not torch.float32:
        _undo_rounding(masters, weights, shapes, parts.world)
    return StartedDeepSpeed(stage, engine, module, zero, adamw, shapes, masters)


def refuse_frozen(model: torch.nn.Module) -> None:
    """StepError names a parameter that is not to be trained: ZeRO keeps no fp32 master of it."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise StepError(
                f"the parameter {name} is frozen (requires_grad is False), and this engine trains all; take train_ddp "
                "or train_fsdp"
            )


def _join(world: World) -> Any:
    """Tell DeepSpeed of the process group that there is."""
    deepspeed = import_deepspeed()
    # It looks for it, also where a process is alone.
    os.environ.setdefault("LOCAL_RANK", str(world.local_rank))
    backend = deepspeed.get_accelerator().communication_backend_name()
    deepspeed.init_distributed(dist_backend=backend, dist_init_required=False)
    return deepspeed


def _sized(config: dict[str, Any], elements: int) -> dict[str, Any]:
    """The configuration for a model of this size, and for our own AdamW."""
    # Its stopwatch would wait for the GPU at each micro-batch.
    config = {**config, "timers": {"throughput": {"enabled": False}}}
    zero = config["zero_optimization"]
    if zero["stage"] == 0:
        # Nothing is spread, so nothing is gained by copies in low precision: parameters stay fp32, as with DDP.
        return {**config, "bf16": {"enabled": False}, "fp16": {"enabled": False}}
    zero = {"reduce_bucket_size": min(_LARGEST_BUCKET_ELEMENTS, elements), **zero}
    return {**config, "zero_optimization": zero, "zero_force_ds_cpu_optimizer": False}


def _compute_in(module: torch.nn.Module, stage: int, dtype: torch.dtype, device: torch.device) -> None:
    """Inside of the model, because DeepSpeed switches autocast off around it."""
    if dtype is torch.float32:
        return
    if stage == 0:
        forward_in_autocast(module, device.type, dtype)
        return
    for unit in [*find_blocks(module), module]:
        forward_of_cast_inputs(unit, dtype)


def _cast_parameters(part: torch.nn.Module, dtype: torch.dtype) -> None:
    for parameter in part.parameters():
        if not hasattr(parameter, "ds_id"):  # else it is DeepSpeed's already
            parameter.data = parameter.data.to(dtype)


def _new_adamw(module: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]], parts: EngineParts) -> torch.optim.AdamW:
    parameters = dict(module.named_parameters())
    return stateless_optimizer(
        [parameter for name, parameter in parameters.items() if len(shapes[name]) >= 2],
        [parameter for name, parameter in parameters.items() if len(shapes[name]) < 2],
        parts.optimizer,
    )


def _undo_rounding(
    masters: Mapping[str, MasterRange],
    weights: Mapping[str, torch.nn.Parameter],
    shapes: Mapping[str, tuple[int, ...]],
    world: World,
) -> None:
    """Give the masters, which DeepSpeed made of rounded weights, rank 0's own."""
    for name, own in masters.items():
        values = (
            weights[name].detach().to(world.device) if world.is_main else torch.empty(shapes[name], device=world.device)
        )
        dist.broadcast(values, src=0)
        own.within(own.flat).copy_(values.view(-1)[own.start : own.start + own.elements])


def forward_in_autocast(module: torch.nn.Module, device_type: str, dtype: torch.dtype) -> None:
    """Of fp32 parameters: each operation chooses."""
    forward = module.forward

    @wraps(forward)
    def cast(*arguments: Any, **named: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype):
            return forward(*arguments, **named)

    module.forward = cast


def forward_of_cast_inputs(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Of parameters that have the type already: what comes from outside is given it too, as FSDP2's policy does.

    Buffers keep theirs: the frequencies of rotary positions, for one, are no use in bf16.
    """
    forward = module.forward

    @wraps(forward)
    def cast(*arguments: Any, **named: Any) -> Any:
        return forward(
            *(_cast_value(argument, dtype) for argument in arguments),
            **{name: _cast_value(argument, dtype) for name, argument in named.items()},
        )

    module.forward = cast


def _cast_value(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    if type(value) is tuple:
        return tuple(_cast_value(part, dtype) for part in value)
    return value


def import_deepspeed() -> Any:
    """The library. StepError where it is not installed."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as failure:
        raise StepError(f'DeepSpeed cannot be imported: {failure}; pip install "trainyard[train]"') from None
    # Its banners, on every rank, tell what the step's own lines do; what goes wrong is still said.
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # It still calls what torch 2.13 gives another name, and is told so at each step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    # An exchange over shared memory that it would compile at run time, for a minute; gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
