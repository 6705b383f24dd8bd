"""What Lightning asks its surroundings for: ranks, where a checkpoint is, and how ranks share a model."""

from __future__ import annotations

from typing import Any

import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.plugins import CheckpointIO
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.rank_variables import RankVariables

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class KnownRanks(ClusterEnvironment):
    """The ranks that this process already knows, whatever started it."""

    def __init__(self, variables: RankVariables) -> None:
        super().__init__()
        self._variables = variables

    @property
    def creates_processes_externally(self) -> bool:
        """Lightning starts no processes."""
        return True

    @property
    def main_address(self) -> str:
        """Where the ranks have met."""
        return self._variables.master_address or "127.0.0.1"

    @property
    def main_port(self) -> int:
        """The port there."""
        return self._variables.master_port

    @staticmethod
    def detect() -> bool:
        """Never found by itself: it is given to the Trainer."""
        return False

    def world_size(self) -> int:
        """The number of ranks."""
        return self._variables.world_size

    def set_world_size(self, size: int) -> None:
        """Check what Lightning has computed: with another number, rank 0 would train alone in silence."""
        assert size == self._variables.world_size, f"Lightning counts {size} ranks of {self._variables.world_size}"

    def global_rank(self) -> int:
        """This rank."""
        return self._variables.rank

    def set_global_rank(self, rank: int) -> None:
        """Check what Lightning has computed from the node's rank."""
        assert rank == self._variables.rank, f"Lightning takes rank {self._variables.rank} for {rank}"

    def local_rank(self) -> int:
        """This rank within its node."""
        return self._variables.local_rank

    def node_rank(self) -> int:
        """The node."""
        return self._variables.node_rank


class CheckpointInMemory(CheckpointIO):
    """Hands Lightning's checkpoints over to the ones with a commit marker, which lie in folders, and back."""

    def __init__(self) -> None:
        self.checkpoint: dict[str, Any] | None = None
        """What Lightning saved last, on rank 0; or what it is to load, on every rank."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Keep it for whoever writes it."""
        self.checkpoint = checkpoint

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Return what was read."""
        assert self.checkpoint is not None
        return self.checkpoint

    def remove_checkpoint(self, path: Any) -> None:
        """Remove nothing: old checkpoints are removed by who wrote them."""


class ShardedStrategy(ModelParallelStrategy):
    """Shards over all ranks, with checkpoints that go through the CheckpointIO, so that any number of ranks resumes.

    Lightning's own strategy saves to a path and reads from it.
    """

    def __init__(self, ranks: KnownRanks) -> None:
        super().__init__(data_parallel_size=ranks.world_size(), tensor_parallel_size=1)
        self.cluster_environment = ranks

    def setup(self, trainer: Trainer) -> None:
        """Set up, and check that ranks share every gradient. StepError names a parameter that was left out."""
        super().setup(trainer)
        assert self.model is not None
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and not isinstance(parameter, DTensor):
                raise StepError(
                    f"the parameter {name} is not sharded, so ranks would not share its gradient; let configure_model "
                    "call fully_shard on the part of the module that holds it"
                )
        if self.root_device.type == "cpu":
            for part in self.model.modules():
                if isinstance(part, FSDPModule):
                    # Gloo of torch 2.8 returns the sum for a mean (https://github.com/pytorch/pytorch/issues/162338).
                    part.set_force_sum_reduction_for_comms(True)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return whole weights in main memory, on rank 0."""
        assert self.model is not None
        return whole_weights(self.model)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return an optimizer's whole state by the names of parameters, on rank 0."""
        assert self.model is not None
        own = optimizer._optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        return get_optimizer_state_dict(self.model, own, options=_WHOLE)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Hand over what Lightning has collected."""
        if self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Take this rank's rows of weights and optimizer state. Every rank has the whole checkpoint."""
        assert self.model is not None
        checkpoint = self.checkpoint_io.load_checkpoint(checkpoint_path)
        whole = StateDictOptions(full_state_dict=True)
        set_model_state_dict(self.model, checkpoint["state_dict"], options=whole)
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            set_optimizer_state_dict(self.model, optimizer, optim_state_dict=state, options=whole)
        return checkpoint


def whole_weights(model: torch.nn.Module) -> dict[str, Any]:
    """Return a model's weights in main memory: on rank 0 all of them, elsewhere none. Every rank calls it."""
    return get_model_state_dict(model, options=_WHOLE)
