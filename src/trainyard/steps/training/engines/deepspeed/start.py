"""How a model is handed to DeepSpeed: weights are brought to all ranks and cast, master weights created."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.blocks import find_blocks, prepare_blocks
from trainyard.steps.training.engines.deepspeed.deepspeed_config import sums_micro_batches_in_bf16
from trainyard.steps.training.engines.engine import EngineParts
from trainyard.steps.training.engines.model_from_files import shared_model
from trainyard.steps.training.fragments import refuse_other_layouts
from trainyard.steps.training.optimizer import begin_state, stateless_optimizer
from trainyard.steps.training.precision import DTYPES

_LARGEST_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default for what is summed at once: a buffer of 2 GiB, even for a smaller model."""
SUMS_IN_BF16 = (
    "warning: ZeRO stage 1 adds up the gradients of a step's micro-batches in bf16, which loses about a hundredth of "
    "each"
)
_READ_BY_DEEPSPEED = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")


@dataclass(frozen=True)
class StartedDeepSpeed:
    """A model in DeepSpeed's hands."""

    stage: int
    engine: Any
    """DeepSpeed's wrapper, around `module`."""
    module: torch.nn.Module
    zero: Any
    """DeepSpeed's optimizer, around `adamw`; in stage 0 `adamw` itself."""
    adamw: torch.optim.Optimizer
    shapes: Mapping[str, tuple[int, ...]]
    """Of whole parameters: in stage 3 the parameters themselves are empty between steps."""
    masters: Mapping[str, MasterRange] = field(default_factory=dict)
    """This rank's, by parameter; none in stage 0, where the parameters are fp32."""


def start_deepspeed(parts: EngineParts, config: dict[str, Any]) -> StartedDeepSpeed:
    """Build the model and hand it to DeepSpeed, with the optimizer's state created."""
    with deepspeed_among(parts.world) as deepspeed:
        return _start(deepspeed, parts, config)


def _start(deepspeed: Any, parts: EngineParts, config: dict[str, Any]) -> StartedDeepSpeed:
    if sums_micro_batches_in_bf16(config):
        parts.world.log(f"{SUMS_IN_BF16}; zero_optimization.stage 2 adds in fp32, as the other engines do")
    stage: int = config["zero_optimization"]["stage"]
    dtype = DTYPES[parts.settings.precision]
    built = shared_model(parts.new_model, parts.world, parts.still_at_work)
    module = built.module
    refuse_other_layouts(module)
    refuse_frozen(module)
    weights = dict(module.named_parameters())
    shapes = {name: tuple(parameter.shape) for name, parameter in weights.items()}
    config = sized(config, sum(math.prod(shape) for shape in shapes.values()))
    prepare_blocks(module, parts.settings)
    _compute_in(module, stage, dtype, parts.world.device)

    for part in [*find_blocks(module), module]:
        built.materialize(part)
        if stage == 3:
            # At once, so that no rank ever holds the whole model.
            divide_parameters(part, dtype, config)
    adamw = _new_adamw(module, shapes, parts)
    engine, zero, _, _ = deepspeed.initialize(model=module, optimizer=adamw, config=config, dist_init_required=False)
    if stage == 0:
        for parameter in module.parameters():
            begin_state(adamw, parameter, parts.optimizer)
        return StartedDeepSpeed(stage, engine, module, zero, adamw, shapes)

    masters = master_ranges(zero, stage, dict(module.named_parameters()))
    for flat in {id(own.flat): own.flat for own in masters.values()}.values():
        begin_state(adamw, flat, parts.optimizer)
    if dtype is not torch.float32:
        undo_rounding(masters, lambda name, start, stop: built.elements(weights[name], start, stop))
    return StartedDeepSpeed(stage, engine, module, zero, adamw, shapes, masters)


def refuse_frozen(model: torch.nn.Module) -> None:
    """StepError names a parameter that is not trained: ZeRO keeps no fp32 master of it."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise StepError(
                f"the parameter {name} is frozen (requires_grad is False), which DeepSpeed does not support; use "
                "train_ddp or train_fsdp"
            )


@contextmanager
def deepspeed_among(world: World) -> Iterator[Any]:
    """A context with DeepSpeed's package, in which it can be handed a model: it uses the existing process group.

    The process's environment is as before afterwards, or a step that follows in it would wonder about its launcher.
    """
    deepspeed = import_deepspeed()
    before = {name: os.environ.get(name) for name in _READ_BY_DEEPSPEED}
    # DeepSpeed reads it, even in a single process.
    os.environ["LOCAL_RANK"] = str(world.local_rank)
    # It insists that this one, if set, is the same; with a spawner under mpirun it is that of the spawner.
    os.environ.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)
    try:
        backend = deepspeed.get_accelerator().communication_backend_name()
        deepspeed.init_distributed(dist_backend=backend, dist_init_required=False)
        yield deepspeed
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def sized(config: dict[str, Any], elements: int) -> dict[str, Any]:
    """Return the configuration adapted to the model's size and to an optimizer of torch."""
    # DeepSpeed's timer would wait for the GPU at each micro-batch.
    config = {**config, "timers": {"throughput": {"enabled": False}}}
    zero = config["zero_optimization"]
    if zero["stage"] == 0:
        # Nothing is sharded, so copies in low precision gain nothing: parameters stay fp32, as with DDP.
        return {**config, "bf16": {"enabled": False}, "fp16": {"enabled": False}}
    zero = {"reduce_bucket_size": min(_LARGEST_BUCKET_ELEMENTS, elements), **zero}
    return {**config, "zero_optimization": zero, "zero_force_ds_cpu_optimizer": False}


def _compute_in(module: torch.nn.Module, stage: int, dtype: torch.dtype, device: torch.device) -> None:
    """Set the precision inside the model, because DeepSpeed disables autocast around it."""
    if dtype is torch.float32:
        return
    if stage == 0:
        forward_in_autocast(module, device.type, dtype)
        return
    for unit in [*find_blocks(module), module]:
        forward_of_cast_inputs(unit, dtype)


def divide_parameters(part: torch.nn.Module, dtype: torch.dtype, config: dict[str, Any]) -> None:
    """Leave each rank its part of rank 0's parameters, one parameter after another, on its device: stage 3."""
    import deepspeed

    for parameter in part.parameters():
        if not hasattr(parameter, "ds_id"):  # else DeepSpeed already has it
            parameter.data = parameter.data.to(dtype)
    deepspeed.zero.Init(module=part, config_dict_or_path=config)


def _new_adamw(
    module: torch.nn.Module, shapes: Mapping[str, tuple[int, ...]], parts: EngineParts
) -> torch.optim.Optimizer:
    parameters = dict(module.named_parameters())
    return stateless_optimizer(
        [parameter for name, parameter in parameters.items() if len(shapes[name]) >= 2],
        [parameter for name, parameter in parameters.items() if len(shapes[name]) < 2],
        parts.optimizer,
    )


def undo_rounding(masters: Mapping[str, MasterRange], exact_elements: Callable[[str, int, int], torch.Tensor]) -> None:
    """Replace the masters, which DeepSpeed made from rounded weights, by the exact weights.

    `exact_elements` returns a range of a flattened parameter, by its name. Every rank calls it for every parameter.
    """
    for name, own in masters.items():
        own.within(own.flat).copy_(exact_elements(name, own.start, own.start + own.elements))


def forward_in_autocast(module: torch.nn.Module, device_type: str, dtype: torch.dtype) -> None:
    """Let autocast choose each operation's precision, with fp32 parameters."""
    forward = module.forward

    @wraps(forward)
    def cast(*arguments: Any, **named: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype):
            return forward(*arguments, **named)

    module.forward = cast


def forward_of_cast_inputs(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast inputs to the type that the parameters already have, as FSDP2's policy does.

    Buffers keep their type: the frequencies of rotary positions, for example, are useless in bf16.
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
    """Import DeepSpeed so that it is quiet, needs no compiler, and runs without a GPU. SetupError if not installed."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        import deepspeed
    except ImportError as failure:
        raise SetupError(f'cannot import DeepSpeed: {failure}; pip install "trainyard-azureml[train]"') from None
    # Its banners, on every rank, repeat what the step logs; errors still appear.
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # It uses names that torch 2.13 deprecates, with a warning at each step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    # It would compile an exchange over shared memory at run time, for a minute; gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@dataclass(frozen=True)
class MasterRange:
    """One parameter's master weights on this rank."""

    flat: torch.Tensor
    """The flat tensor that the optimizer updates, and the key of its state."""
    offset: int
    """Where the range begins in it."""
    start: int
    """The index of its first element in the flattened parameter."""
    elements: int
    """How many elements there are; 0 if other ranks have them all."""

    def within(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the range in the flat tensor, or in state of the same layout."""
        return flat.detach().narrow(0, self.offset, self.elements)


def master_ranges(
    zero_optimizer: Any, stage: int, parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, MasterRange]:
    """Return every parameter's master weights on this rank, by name."""
    find = _in_partitioned_parameter if stage == 3 else _in_flat_partition
    return {name: find(zero_optimizer, parameter) for name, parameter in parameters.items()}


def rebuild_low_precision(zero_optimizer: Any, stage: int) -> None:
    """Update what the forward pass reads from the master weights, as at the end of a step."""
    if stage < 3:
        zero_optimizer.update_lp_params()
        return
    zero_optimizer._partition_all_parameters()
    for group in range(len(zero_optimizer.fp16_groups)):
        zero_optimizer._reassign_or_swap_out_partitioned_parameters(group)
    persistent = zero_optimizer.persistent_parameters
    if persistent:
        persistent[0].all_gather(persistent)


def _in_flat_partition(zero_optimizer: Any, parameter: Any) -> MasterRange:
    """Stages 1 and 2: a group's parameters end to end, cut into as many equal parts as there are ranks."""
    group = next(
        index for index, group in enumerate(zero_optimizer.bit16_groups) if any(parameter is member for member in group)
    )
    flat = zero_optimizer.single_partition_of_fp32_groups[group]
    mapping = parameter._hp_mapping
    if mapping is None:
        return MasterRange(flat, 0, 0, 0)
    address = mapping.get_hp_fragment_address()
    return MasterRange(flat, address.start, mapping.lp_fragment_address.start, address.numel)


def _in_partitioned_parameter(zero_optimizer: Any, parameter: Any) -> MasterRange:
    """Stage 3: each parameter is cut into as many equal parts as there are ranks, the last one padded."""
    group, offset, elements_each = zero_optimizer.grad_position[zero_optimizer.get_param_id(parameter)]
    start = min(parameter.ds_zero_partition_rank * elements_each, parameter.ds_numel)
    elements = min(elements_each, parameter.ds_numel - start)
    return MasterRange(zero_optimizer.fp32_partitioned_groups_flat[group], offset, start, elements)
