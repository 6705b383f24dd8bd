"""DeepSpeed: ZeRO 0 to 3, with offload to main memory, as set in a configuration file.

DeepSpeed exchanges gradients, shards the state and offloads it. AdamW, its learning rate, exact sums of gradients and
checkpoints remain the step's own. Offload uses torch's fused AdamW too, which is vectorized on a CPU and, unlike
DeepSpeed's own, needs no compiler on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.steps.training import TrainDeepSpeed, Training
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.engines.deepspeed.deepspeed_config import check_sections, read_deepspeed_config
from trainyard.steps.training.engines.deepspeed.start import import_deepspeed, rebuild_low_precision, start_deepspeed
from trainyard.steps.training.engines.engine import Engine, EngineParts, refuse_adapters, refuse_other_optimizers
from trainyard.steps.training.engines.rank_zero_model import whole_model
from trainyard.steps.training.fragments import (
    MODEL_KEY,
    OPTIMIZER_KEY,
    Fragment,
    named_once,
    replicated_state,
    whole_tensor,
)
from trainyard.steps.training.optimizer import gradient_seed, optimizer_step
from trainyard.steps.training.precision import LossScale

_SCALER_KEY = "deepspeed_scaler/"
_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class DeepSpeedEngine(Engine):
    """In stage 0 each rank has everything in fp32; from stage 1 on it has its part of the fp32 masters.

    With fp16, stage 3 of DeepSpeed 0.19.8 updates its scale before it unscales the gradient (runtime/zero/stage3.py,
    `step`): in the one step after which the scale doubles, gradient and norm are half of what they should be. bf16 has
    no scale.
    """

    name = "deepspeed"
    uses_autocast = False

    @classmethod
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """Check the configuration file against the step's settings and DeepSpeed's own schema."""
        assert isinstance(settings, TrainDeepSpeed)
        refuse_adapters(settings, "DeepSpeed, which keeps no weights that are not trained")
        if settings.float8:
            raise StepError("--float8 does not work with DeepSpeed, which rounds weights itself; use train_fsdp")
        refuse_other_optimizers(settings, "DeepSpeed, which cuts parameters into flat parts")
        config = read_deepspeed_config(settings, batch)
        import_deepspeed()
        check_sections(settings.deepspeed_config, config)
        if settings.compile and config["zero_optimization"]["stage"] == 3:
            raise StepError(
                f"{settings.deepspeed_config}: --compile true does not work with zero_optimization.stage 3, whose "
                "hooks cannot be compiled; use stage 2, or train_fsdp"
            )

    def __init__(self, parts: EngineParts) -> None:
        settings, self.world, self._parts = parts.settings, parts.world, parts
        assert isinstance(settings, TrainDeepSpeed)
        self._clip_norm = settings.gradient_clip_norm
        started = start_deepspeed(parts, read_deepspeed_config(settings, parts.batch))
        self._stage, self._module, self._shapes = started.stage, started.module, started.shapes
        self._adamw, self._zero, self._masters = started.adamw, started.zero, started.masters
        self.model, self._deepspeed = started.engine, started.engine
        self._parameters, self._buffers = named_once(self._module)
        self.forwards_in_lockstep = self._stage == 3
        # From stage 1 on DeepSpeed keeps fp16's scale.
        self._has_own_scaler = settings.precision == "fp16" and self._stage > 0
        is_ours = settings.precision == "fp16" and self._stage == 0
        self.loss_scale = LossScale(self.world.device, enabled=is_ours)

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Stages 0 and 1 exchange gradients in the last micro-batch, 2 and 3 in each, because they keep only parts."""
        self._deepspeed.set_gradient_accumulation_boundary(is_last)
        return nullcontext()

    def backward(self, loss_sum: torch.Tensor, step_terms: float) -> None:
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
            rebuild_low_precision(self._zero, self._stage)

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

    def parameter_count(self) -> int:
        """Return the number counted before sharding."""
        return sum(math.prod(shape) for shape in self._shapes.values())

    def whole_model(self) -> torch.nn.Module:
        """Return, on rank 0, a new model in main memory with the fp32 masters; an empty one elsewhere."""
        return whole_model(self._parts.new_model, self.fragments(), self.world, self._parts.still_at_work)
