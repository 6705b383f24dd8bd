"""DeepSpeed: ZeRO 0 to 3, with offload to main memory, as set in a configuration file.

DeepSpeed exchanges gradients, shards the state and offloads it. AdamW, its learning rate, exact sums of gradients and
checkpoints remain the step's own. Offload uses torch's fused AdamW too, which is vectorized on a CPU and, unlike
DeepSpeed's own, needs no compiler on the machine.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.steps.training import TrainDeepSpeed, Training
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.imports import from_extra, require_packages
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.blocks import find_blocks, forward_within, prepare_blocks
from trainyard.steps.training.engines.deepspeed_config import (
    check_sections,
    read_deepspeed_config,
    sums_micro_batches_in_bf16,
)
from trainyard.steps.training.engines.engine import Engine, EngineParts, refuse_adapters_and_optimizers
from trainyard.steps.training.engines.shared_model import shared_model
from trainyard.steps.training.fragments import (
    MODEL_KEY,
    OPTIMIZER_KEY,
    Fragment,
    named_once,
    refuse_other_layouts,
    replicated_state,
    whole_tensor,
)
from trainyard.steps.training.optimizer import begin_state, gradient_seed, optimizer_step, stateless_optimizer
from trainyard.steps.training.precision import DTYPES, LossScale

_SCALER_KEY = "deepspeed_scaler/"
_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
_LARGEST_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default for what is summed at once: a buffer of 2 GiB, even for a smaller model."""
_SUMS_IN_BF16 = (
    "warning: ZeRO stage 1 adds up the gradients of a step's micro-batches in bf16, which loses about a hundredth of "
    "each; zero_optimization.stage 2 adds in fp32, as the other engines do"
)


class DeepSpeedEngine(Engine):
    """In stage 0 each rank has everything in fp32; from stage 1 on it has its part of the fp32 masters.

    With fp16, stage 3 of DeepSpeed 0.19.8 updates its scale before it unscales the gradient (runtime/zero/stage3.py,
    `step`): in the one step after which the scale doubles, gradient and norm are half of what they should be. bf16 has
    no scale.
    """

    name = "deepspeed"
    variables = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    uses_autocast = False

    @classmethod
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """Check the configuration file against the step's settings and DeepSpeed's own schema."""
        assert isinstance(settings, TrainDeepSpeed)
        no_adapters = "DeepSpeed, which keeps no weights that are not trained"
        refuse_adapters_and_optimizers(settings, no_adapters, "DeepSpeed, which cuts parameters into flat parts")
        if settings.float8:
            raise StepError("--float8 does not work with DeepSpeed, which rounds weights itself; use train_fsdp")
        config = read_deepspeed_config(settings, batch)
        import_deepspeed()
        check_sections(settings.deepspeed_config, config)

    def __init__(self, parts: EngineParts) -> None:
        settings, self.world, self._parts = parts.settings, parts.world, parts
        assert isinstance(settings, TrainDeepSpeed)
        self._clip_norm = settings.gradient_clip_norm
        config = read_deepspeed_config(settings, parts.batch)
        self._stage: int = config["zero_optimization"]["stage"]
        self._start(_deepspeed_among(self.world), config)
        self._parameters, self._buffers = named_once(self._module)
        self.forwards_in_lockstep = self._stage == 3
        # From stage 1 on DeepSpeed keeps fp16's scale.
        self._has_own_scaler = settings.precision == "fp16" and self._stage > 0
        is_ours = settings.precision == "fp16" and self._stage == 0
        self.loss_scale = LossScale(self.world.device, enabled=is_ours)

    def _start(self, deepspeed: Any, config: dict[str, Any]) -> None:
        """Build the model and hand it to DeepSpeed, with the optimizer's state created."""
        parts, world = self._parts, self.world
        if sums_micro_batches_in_bf16(config):
            world.log(_SUMS_IN_BF16)
        dtype = DTYPES[parts.settings.precision]
        built = shared_model(parts.new_model, world, parts.still_at_work)
        self._module = module = built.module
        refuse_other_layouts(module)
        refuse_frozen(module)
        weights = dict(module.named_parameters())
        # Of whole parameters: in stage 3 the parameters themselves are empty between steps.
        self._shapes = {name: tuple(parameter.shape) for name, parameter in weights.items()}
        self.parameter_count = sum(parameter.numel() for parameter in weights.values())
        config = _sized(config, self.parameter_count)
        prepare_blocks(module, parts.settings)
        _compute_in(module, self._stage, dtype, world.device)

        for part in [*find_blocks(module), module]:
            built.materialize(part)
            if self._stage == 3:
                # At once, each rank its part of rank 0's parameters, so that none ever holds the whole model.
                for parameter in part.parameters():
                    if not hasattr(parameter, "ds_id"):  # else DeepSpeed already has it
                        parameter.data = parameter.data.to(dtype)
                deepspeed.zero.Init(module=part, config_dict_or_path=config)
        parameters = dict(module.named_parameters())
        self._adamw = stateless_optimizer(
            [parameter for name, parameter in parameters.items() if len(self._shapes[name]) >= 2],
            [parameter for name, parameter in parameters.items() if len(self._shapes[name]) < 2],
            parts.optimizer,
        )
        # DeepSpeed's wrapper around the module, and its optimizer around ours, which it is itself in stage 0.
        self.model, self._zero, _, _ = deepspeed.initialize(
            model=module, optimizer=self._adamw, config=config, dist_init_required=False
        )
        self._deepspeed: Any = self.model
        self._masters: Mapping[str, MasterRange] = {}
        """This rank's, by parameter; none in stage 0, where the parameters are fp32."""
        if self._stage == 0:
            for parameter in module.parameters():
                begin_state(self._adamw, parameter, parts.optimizer)
            return
        find = _in_partitioned_parameter if self._stage == 3 else _in_flat_partition
        self._masters = {name: find(self._zero, parameter) for name, parameter in module.named_parameters()}
        for flat in {id(own.flat): own.flat for own in self._masters.values()}.values():
            begin_state(self._adamw, flat, parts.optimizer)
        if dtype is not torch.float32:
            # DeepSpeed made the masters from rounded weights. Every rank asks for its range of every parameter.
            for name, own in self._masters.items():
                own.within(own.flat).copy_(built.elements(weights[name], own.start, own.start + own.elements))

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Stages 0 and 1 exchange gradients in the last micro-batch, 2 and 3 in each, because they keep only parts."""
        self._deepspeed.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    def backward(self, loss_sum: torch.Tensor, step_terms: torch.Tensor | float) -> None:
        """Scale by the number of ranks, over which DeepSpeed averages: an exact mean needs the sum."""
        seed = gradient_seed(loss_sum, self.world.size / step_terms, self.loss_scale)
        self._deepspeed.backward(loss_sum * seed, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> torch.Tensor:
        """Clip and step with AdamW. From stage 1 on DeepSpeed does both on its parts, and skips what is not finite."""
        if self._stage == 0:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self._parameters.values() if p.grad is not None])
            return optimizer_step(
                self._adamw, self.loss_scale, norm, clip_norm=self._clip_norm, learning_rate=learning_rate
            )
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._deepspeed.step()
        return torch.as_tensor(self._zero._global_grad_norm, dtype=torch.float32, device=self.world.device)

    def fragments(self) -> list[Fragment]:
        """Return whole tensors in stage 0, and this rank's ranges of the masters and of their state from stage 1 on."""
        if self._stage == 0:
            return replicated_state(self._module, self._adamw)
        found = [whole_tensor(f"{MODEL_KEY}{name}", buffer) for name, buffer in self._buffers.items()]
        for name, masters in self._masters.items():
            state = self._adamw.state[masters.flat]
            found.append(whole_tensor(f"{OPTIMIZER_KEY}{name}/step", state["step"]))
            for key, flat in (
                (f"{MODEL_KEY}{name}", masters.flat),
                (f"{OPTIMIZER_KEY}{name}/exp_avg", state["exp_avg"]),
                (f"{OPTIMIZER_KEY}{name}/exp_avg_sq", state["exp_avg_sq"]),
            ):
                found.append(Fragment(key, self._shapes[name], masters.start, masters.within(flat)))
        return found

    def fragments_restored(self) -> None:
        """Update what the forward pass reads from the masters."""
        if self._stage > 0:
            _rebuild_low_precision(self._zero, self._stage)

    def scalars(self) -> dict[str, float]:
        """Return fp16's loss scale, and how long ago it changed."""
        if not self._has_own_scaler:
            return super().scalars()
        scaler = self._zero.loss_scaler
        return {f"{_SCALER_KEY}{name}": float(getattr(scaler, name)) for name in _SCALER_STATE if hasattr(scaler, name)}

    def restore_scalars(self, scalars: Mapping[str, float]) -> None:
        """Restore fp16's loss scale. DeepSpeed's and ours do not carry over to each other."""
        super().restore_scalars(scalars)
        for name in _SCALER_STATE:
            if self._has_own_scaler and f"{_SCALER_KEY}{name}" in scalars:
                scaler = self._zero.loss_scaler
                setattr(scaler, name, type(getattr(scaler, name))(scalars[f"{_SCALER_KEY}{name}"]))


def refuse_frozen(model: torch.nn.Module) -> None:
    """StepError names a parameter that is not trained: ZeRO keeps no fp32 master of it."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise StepError(
                f"the parameter {name} is frozen (requires_grad is False), which DeepSpeed does not support; use "
                "train_ddp or train_fsdp"
            )


def _deepspeed_among(world: World) -> Any:
    """Return DeepSpeed's package, which uses the existing process group and can be handed a model."""
    deepspeed = import_deepspeed()
    # DeepSpeed reads it, in stage 3 while training too and in a single process, and takes it for the number of the GPU.
    os.environ["LOCAL_RANK"] = str(world.local_rank if world.device.index is None else world.device.index)
    # It insists that this one, if set, is the same; with a spawner under mpirun it is that of the spawner.
    os.environ.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)
    backend = deepspeed.get_accelerator().communication_backend_name()
    deepspeed.init_distributed(dist_backend=backend, dist_init_required=False)
    return deepspeed


def _sized(config: dict[str, Any], elements: int) -> dict[str, Any]:
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
        forward_within(module, lambda: torch.autocast(device.type, dtype=dtype))
        return
    for unit in [*find_blocks(module), module]:
        _forward_of_cast_inputs(unit, dtype)


def _forward_of_cast_inputs(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Cast inputs to the type that the parameters already have, as FSDP2's policy does.

    Buffers keep their type: frequencies of rotary positions are useless in bf16. So do lists, to which modules may add.
    """
    forward = module.forward

    def rounded(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.to(dtype)
        return tuple(map(rounded, value)) if type(value) is tuple else value

    @wraps(forward)
    def cast(*arguments: Any, **named: Any) -> Any:
        return forward(*rounded(arguments), **{name: rounded(value) for name, value in named.items()})

    module.forward = cast


def import_deepspeed() -> Any:
    """Import DeepSpeed so that it is quiet, needs no compiler, and runs without a GPU. SetupError if not installed."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    require_packages("training with DeepSpeed", from_extra("train"), "deepspeed")
    import deepspeed

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


def _rebuild_low_precision(zero_optimizer: Any, stage: int) -> None:
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
