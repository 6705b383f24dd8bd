"""FSDP2: parameters, gradients and optimizer state sharded over the ranks by rows, gathered block by block.

With a shard size, over so many neighbouring ranks, which are a replica of the model; replicas exchange gradients only
(hybrid sharding).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainyard.settings.batch_arithmetic import BatchArithmetic, sums_every_micro_batch
from trainyard.settings.steps.training import TrainFSDP, Training
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.blocks import find_separate_blocks, prepare_blocks
from trainyard.steps.training.engines.engine import Engine, EngineParts, refuse_adapters_and_optimizers
from trainyard.steps.training.engines.shared_model import RowsOfRank, SharedModel, shared_model
from trainyard.steps.training.fragments import (
    MODEL_KEY,
    OPTIMIZER_KEY,
    Fragment,
    named_once,
    refuse_other_layouts,
    whole_tensor,
)
from trainyard.steps.training.optimizer import gradient_norm, new_optimizer, optimizer_step
from trainyard.steps.training.precision import DTYPES, LossScale


class FSDPEngine(Engine):
    """Each rank holds its rows of every parameter in fp32, with their gradient and optimizer state.

    Optimizer and clipping work on those rows as plain tensors: AdamW is element-wise, and the norm needs one sum over
    ranks. Plain tensors cost nothing to dispatch, and their kernels decide on the device.
    """

    name = "fsdp"
    forwards_in_lockstep = True
    uses_autocast = False

    @classmethod
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """Refuse weights of 4 bits, which have no rows to shard, and a shard size that does not divide the ranks."""
        assert isinstance(settings, TrainFSDP)
        refuse_adapters_and_optimizers(settings, None, "FSDP, which gives each rank only some rows of a matrix")
        if settings.tuning == "qlora":
            raise StepError("--tuning qlora does not work with FSDP, which cannot shard 4-bit weights; use train_ddp")
        if settings.shard_size and batch.world_size % settings.shard_size:
            raise StepError(
                f"--shard-size {settings.shard_size} does not divide the {batch.world_size} ranks; use one of "
                f"{', '.join(str(size) for size in range(1, batch.world_size + 1) if batch.world_size % size == 0)}"
            )

    def __init__(self, parts: EngineParts) -> None:
        settings = parts.settings
        assert isinstance(settings, TrainFSDP)
        self.world, self._clip_norm = parts.world, settings.gradient_clip_norm
        self.loss_scale = LossScale(self.world.device, enabled=settings.precision == "fp16")
        self._shards = settings.shard_size or self.world.size
        mesh = _mesh(self.world, self._shards)
        self._shard_group = mesh.get_group("shard")
        self.replicas = mesh.get_group("replica") if self._shards < self.world.size else None
        self._shard = RowsOfRank(self.world.rank % self._shards, self._shards, self.replicas)
        built = shared_model(parts.new_model, self.world, parts.still_at_work, self._shard)
        self.model = built.module
        refuse_other_layouts(self.model)
        refuse_single_numbers(self.model)
        self.parameter_count = sum(parameter.numel() for parameter in self.model.parameters())
        prepare_blocks(self.model, settings)
        self._units = _shard_units(built, settings, mesh)

        # Taken while every parameter is in its sharded form: later, a gathered one may replace it.
        parameters, self._buffers = named_once(self.model)
        self._sharded = {name: cast(DTensor, parameter) for name, parameter in parameters.items()}
        self._rows = {
            name: torch.nn.Parameter(sharded.to_local().detach(), requires_grad=sharded.requires_grad)
            for name, sharded in self._sharded.items()
        }
        self._optimizer = new_optimizer(self._rows.values(), parts.optimizer)
        self._sums_every_micro_batch = sums_every_micro_batch(
            settings.gradient_sync,
            DTYPES[settings.reduce_precision].itemsize
            * sum(each.numel() for each in self._sharded.values() if each.requires_grad),
            torch.cuda.get_device_properties(self.world.device).total_memory if self.world.device.type == "cuda" else 0,
        )
        self._exchanges = True
        if parts.batch.accumulation_steps > 1:
            which = "every micro-batch" if self._sums_every_micro_batch else "the last micro-batch of a step"
            self.world.log(f"ranks sum gradients after {which} (--gradient-sync {settings.gradient_sync})")

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Exchange gradients with the step's last micro-batch: until then each rank keeps a whole gradient.

        Or only between replicas with the last, and within each with every one: a rank keeps its rows.
        """
        if is_last != self._exchanges:
            self._exchanges = is_last
            for unit in self._units:
                if self._sums_every_micro_batch:
                    unit.set_requires_all_reduce(is_last, recurse=False)
                else:
                    unit.set_requires_gradient_sync(is_last, recurse=False)
        return nullcontext()

    def step(self, learning_rate: float) -> torch.Tensor:
        """Clip and step with AdamW, each rank on its rows; the norm takes one sum over the ranks of a replica."""
        for name, sharded in self._sharded.items():
            gradient = cast("DTensor | None", sharded.grad)
            self._rows[name].grad = None if gradient is None else gradient.to_local()
            sharded.grad = None
        own_norm = gradient_norm(self._rows.values())
        squares = own_norm.square().to(self.world.device)  # from main memory, if gradients are offloaded
        dist.all_reduce(squares, group=self._shard_group)
        norm = squares.sqrt().to(own_norm.device)
        norm = optimizer_step(
            self._optimizer, self.loss_scale, norm, clip_norm=self._clip_norm, learning_rate=learning_rate
        )
        return norm.to(self.world.device)

    def fragments(self) -> list[Fragment]:
        """Return this rank's rows, of which each replica has a copy, and whole buffers."""
        replica, replicas = self.world.rank // self._shards, self.world.size // self._shards
        rows, steps = [], []
        for name, sharded in self._sharded.items():
            row = self._rows[name]
            state = self._optimizer.state.get(row, {})
            moments = {f"{OPTIMIZER_KEY}{name}/{key}": state[key] for key in ("exp_avg", "exp_avg_sq") if key in state}
            for key, values in {f"{MODEL_KEY}{name}": row, **moments}.items():
                rows.append(
                    Fragment(
                        key,
                        tuple(sharded.shape),
                        self._shard.elements(sharded.shape)[0],
                        values.detach().view(-1),
                        is_frozen=not sharded.requires_grad,
                        copy=replica,
                        copies=replicas,
                    )
                )
            if row.requires_grad:
                steps.append(whole_tensor(f"{OPTIMIZER_KEY}{name}/step", state["step"]))
        return [*rows, *steps, *(whole_tensor(f"{MODEL_KEY}{name}", buffer) for name, buffer in self._buffers.items())]

    def fragments_restored(self) -> None:
        """Free whatever was gathered from the former values."""
        for unit in self._units:
            unit.reshard()


def shard_to_evaluate(new_model: Callable[[], torch.nn.Module], world: World) -> torch.nn.Module:
    """Return a model whose fp32 weights are spread over the ranks, and gathered block by block in a forward pass.

    Each rank reads its rows. Every rank calls this, and from then on makes as many forward passes as the others.
    """
    built = shared_model(new_model, world, lambda: None, RowsOfRank(world.rank, world.size))
    refuse_single_numbers(built.module)
    mesh = _mesh(world, world.size)
    for unit in [*find_separate_blocks(built.module), built.module]:
        built.materialize(unit)
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    return built.module


def refuse_single_numbers(model: torch.nn.Module) -> None:
    """StepError names a parameter without dimensions."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise StepError(
                f"the parameter {name} is a scalar, which has no rows to shard; give it the shape (1,) in the model, "
                "or use train_ddp"
            )


def _mesh(world: World, shards: int) -> DeviceMesh:
    """Return the ranks as replicas of `shards` neighbours each; without a dimension for replicas if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if shards == world.size:
        return init_device_mesh(device, (shards,), mesh_dim_names=("shard",))
    world.allow_open_files(shards)
    return init_device_mesh(device, (world.size // shards, shards), mesh_dim_names=("replica", "shard"))


def _shard_units(built: SharedModel, settings: TrainFSDP, mesh: DeviceMesh) -> list[FSDPModule]:
    """Shard block after block, each as its weights arrive, then the rest. Return what was sharded.

    Each is gathered, and its gradient summed, in one exchange. What is around the blocks stays gathered between the
    forward and the backward pass, which begins with it.
    """
    on_gpu = torch.cuda.is_available()
    precision = MixedPrecisionPolicy(
        param_dtype=DTYPES[settings.precision], reduce_dtype=DTYPES[settings.reduce_precision]
    )
    offload = CPUOffloadPolicy(pin_memory=on_gpu) if settings.cpu_offload else OffloadPolicy()
    units = []
    for unit in [*find_separate_blocks(built.module), built.module]:
        built.materialize(unit)
        reshard = settings.reshard_after_forward and unit is not built.module
        sharded = fully_shard(
            unit, mesh=mesh, reshard_after_forward=reshard, mp_policy=precision, offload_policy=offload
        )
        # Gathered once, since torch 2.8 then makes new storage for rows that it pads; after that they stay in place.
        sharded.unshard()
        sharded.reshard()
        if not on_gpu:
            # Gloo of torch 2.8 returns the sum for a mean (https://github.com/pytorch/pytorch/issues/162338).
            sharded.set_force_sum_reduction_for_comms(True)
        units.append(sharded)
    return units
