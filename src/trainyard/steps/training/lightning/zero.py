"""DeepSpeed's ZeRO as Lightning's strategy: on CPUs too, and with whole checkpoints."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import DeepSpeedPrecision
from lightning.pytorch.strategies import DeepSpeedStrategy

from trainyard.foundation.batch_arithmetic import BatchArithmetic
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.deepspeed.config import sum_in_fp32, sums_micro_batches_in_bf16
from trainyard.steps.training.engines.deepspeed.masters import MasterRange, master_ranges, rebuild_low_precision
from trainyard.steps.training.engines.deepspeed.start import (
    SUMS_IN_BF16,
    deepspeed_among,
    divide_parameters,
    import_deepspeed,
    refuse_frozen,
    sized,
    undo_rounding,
)
from trainyard.steps.training.engines.rank_zero_model import from_rank_zero, gathered
from trainyard.steps.training.fragments import (
    MODEL_KEY,
    OPTIMIZER_KEY,
    Fragment,
    named_once,
    refuse_other_layouts,
    whole_tensor,
)
from trainyard.steps.training.lightning.plugins import KnownRanks

_UNDIVIDED = ("Adafactor", "Adagrad", "LBFGS", "Muon", "SparseAdam")
"""Optimizers of torch that do not compute element by element, or make their state before parameters are divided."""
_STEPS = ("training_step", "validation_step")


class ZeroStrategy(DeepSpeedStrategy):
    """Divides the optimizer's state, gradients and parameters among ranks, according to the stage.

    Lightning's own strategy refuses CPUs, divides a loss by the number of micro-batches twice, takes no step with what
    is left at an epoch's end, and saves folders that only as many ranks can read.
    """

    def __init__(
        self, world: World, *, stage: int, dtype: torch.dtype, batch: BatchArithmetic, parameter_count: int
    ) -> None:
        import_deepspeed()
        self._world, self._stage, self._dtype = world, stage, dtype
        config = {
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "train_micro_batch_size_per_gpu": batch.micro_batch_size,
            "bf16": {"enabled": dtype is torch.bfloat16},
        }
        sum_in_fp32(config)
        super().__init__(
            cluster_environment=KnownRanks(world.variables),
            precision_plugin=_Precision("bf16-mixed" if dtype is torch.bfloat16 else "32-true"),
            config=sized(config, parameter_count),
            logging_level=logging.ERROR,
        )

    @property
    def handles_gradient_accumulation(self) -> bool:
        """Let Lightning say which micro-batch is a step's last: it knows where an epoch ends."""
        return False

    @property
    def gradient_norm(self) -> torch.Tensor:
        """The gradient's norm in the last step, before it was clipped; DeepSpeed keeps parts of the gradient only."""
        return torch.as_tensor(self._zero._global_grad_norm, dtype=torch.float32, device=self.root_device)

    def setup_environment(self) -> None:
        """Prepare the device, without Lightning's check that it is a GPU."""
        super(DeepSpeedStrategy, self).setup_environment()

    def setup_distributed(self) -> None:
        """Let Lightning use the existing process group."""
        self.set_world_ranks()

    @contextmanager
    def model_sharded_context(self) -> Iterator[None]:
        """Let configure_model build what it likes; parameters are divided when all are there."""
        yield

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Ask the module for its optimizer while parameters are whole: it may go by their shapes."""
        super(DeepSpeedStrategy, self).setup_optimizers(trainer)
        (self._optimizer,) = self.optimizers
        name = type(self._optimizer).__name__
        if name in _UNDIVIDED:
            raise StepError(
                f"{name} does not work with DeepSpeed, which divides parameters into flat parts; let "
                "configure_optimizers return one that computes element by element, such as AdamW, or use --strategy ddp"
            )

    def init_deepspeed(self) -> None:
        """Hand the module over. StepError names a parameter that DeepSpeed could not train."""
        module, optimizer, config = self.lightning_module, self._optimizer, self.config
        assert module is not None
        assert config is not None
        if sums_micro_batches_in_bf16(config):
            self._world.log(f"{SUMS_IN_BF16}; --strategy deepspeed_stage_2 adds in fp32, as the other strategies do")
        refuse_other_layouts(module)
        refuse_frozen(module, "--strategy ddp or fsdp2")
        parameters, _ = named_once(module)
        _refuse_forgotten(parameters, optimizer)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        exact = {}
        if self._dtype is not torch.float32:
            exact = {name: parameter.detach().clone() for name, parameter in parameters.items()}
            for name in _STEPS:
                _compute_in(module, name, self.root_device.type, self._dtype)
        with deepspeed_among(self._world) as deepspeed:
            if self._stage == 3:
                divide_parameters(module, self._dtype, config)
                self.model_to_device()  # what is left: buffers
            self.model, self._zero, _, _ = deepspeed.initialize(
                model=module, optimizer=optimizer, config=config, dist_init_required=False
            )
        self.optimizers = [self._zero]
        self._masters = master_ranges(self._zero, self._stage, parameters)
        if exact:
            undo_rounding(
                self._masters,
                lambda name, start, stop: from_rank_zero(exact[name], self._world).view(-1)[start:stop],
            )

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Add the gradient of a micro-batch that is not its step's last."""
        self.deepspeed_engine.set_gradient_accumulation_boundary(False)
        yield
        self.deepspeed_engine.set_gradient_accumulation_boundary(True)

    def weights(self) -> list[Fragment]:
        """Return this rank's ranges of the fp32 weights, and the buffers."""
        assert self.lightning_module is not None
        _, buffers = named_once(self.lightning_module)
        return [
            *(whole_tensor(f"{MODEL_KEY}{name}", buffer) for name, buffer in buffers.items()),
            *(self._fragment(f"{MODEL_KEY}{name}", name, own.flat) for name, own in self._masters.items()),
        ]

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return whole fp32 weights and buffers in main memory, on rank 0."""
        whole = {key.removeprefix(MODEL_KEY): values for key, values in gathered(self.weights(), self._world)}
        if not whole:
            return {}
        assert self.lightning_module is not None
        parameters, buffers = named_once(self.lightning_module)
        names = {id(tensor): name for name, tensor in (parameters | buffers).items()}
        state = self.lightning_module.state_dict(keep_vars=True)
        return {key: whole[names[id(value)]] if id(value) in names else value for key, value in state.items()}

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the whole state by the names of parameters, on rank 0: tensors of their shapes, and single values."""
        ranges = []
        values: dict[str, dict[str, Any]] = {name: {} for name in self._masters}
        for name, own in self._masters.items():
            for key, value in self._optimizer.state.get(own.flat, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == own.flat.shape:
                    ranges.append(self._fragment(f"{OPTIMIZER_KEY}{name}/{key}", name, value))
                else:
                    values[name][key] = self._single_value(key, value)
        tensors: dict[str, dict[str, torch.Tensor]] = {name: {} for name in self._masters}
        for path, whole in gathered(ranges, self._world):
            name, _, key = path.removeprefix(OPTIMIZER_KEY).partition("/")
            tensors[name][key] = whole
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in self._optimizer.param_groups
        ]
        return {"tensors": tensors, "values": values, "param_groups": groups} if self.is_global_zero else {}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Hand over what Lightning has collected."""
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Take this rank's ranges of weights and optimizer state. Every rank has the whole checkpoint."""
        checkpoint = self.checkpoint_io.load_checkpoint(checkpoint_path)
        (saved,) = checkpoint["optimizer_states"]
        for group, of_group in zip(self._optimizer.param_groups, saved["param_groups"], strict=True):
            group.update(copy.deepcopy(of_group))
        on_device = any(group.get("fused") or group.get("capturable") for group in saved["param_groups"])
        for name, own in self._masters.items():
            _copy_range(checkpoint["state_dict"][name], own, own.flat)
            state = self._optimizer.state[own.flat]
            for key, whole in saved["tensors"][name].items():
                if key not in state:
                    state[key] = torch.zeros_like(own.flat, dtype=whole.dtype)
                _copy_range(whole, own, state[key])
            for key, value in saved["values"][name].items():
                state[key] = copy.deepcopy(value)
                if isinstance(value, torch.Tensor) and (on_device or key != "step"):  # as torch does
                    state[key] = state[key].to(own.flat.device)
        rebuild_low_precision(self._zero, self._stage)
        return checkpoint

    def _fragment(self, key: str, name: str, flat: torch.Tensor) -> Fragment:
        own = self._masters[name]
        return Fragment(key, self._shapes[name], own.start, own.within(flat))

    def _single_value(self, key: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.numel() > 1:
            name = type(self._optimizer).__name__
            raise StepError(
                f"{name} keeps {key} of the shape {tuple(value.shape)}, neither a single number nor one for each "
                "element of a parameter, so ranks could not divide it; use --strategy ddp"
            )
        return value.cpu()


class _Precision(DeepSpeedPrecision):
    """Leaves batches as they are, as with the other strategies."""

    def convert_input(self, data: Any) -> Any:
        """Return the batch, whose values autocast casts where they are used."""
        return data

    def backward(self, tensor: torch.Tensor, model: Any, *args: Any, **kwargs: Any) -> None:
        """Let DeepSpeed compute the gradient of a loss that Lightning has divided by the number of micro-batches."""
        super().backward(tensor, model, *args, scale_wrt_gas=False, **kwargs)


def _refuse_forgotten(parameters: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """StepError names a parameter that the optimizer does not have: DeepSpeed reduces no gradient of it."""
    optimized = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in parameters.items():
        if id(parameter) not in optimized:
            raise StepError(
                f"the parameter {name} is not in the optimizer of configure_optimizers, which DeepSpeed does not "
                "support; add it, or use --strategy ddp"
            )


def _compute_in(module: LightningModule, name: str, device_type: str, dtype: torch.dtype) -> None:
    """Let autocast choose each operation's precision in a step of the module, as with DDP.

    Inside of DeepSpeed's forward pass, which disables what is around it.
    """
    step = getattr(module, name)

    @wraps(step)
    def cast(*arguments: Any, **named: Any) -> Any:
        with torch.autocast(device_type, dtype=dtype):
            return step(*arguments, **named)

    setattr(module, name, cast)


def _copy_range(whole: torch.Tensor, own: MasterRange, flat: torch.Tensor) -> None:
    """Copy this rank's range of a whole tensor to its place in a flat one."""
    own.within(flat).copy_(whole.reshape(-1)[own.start : own.start + own.elements])
