"""What Lightning asks its surroundings for: which rank this is, and how ranks share a model."""

from __future__ import annotations

import signal
import threading
from typing import Any

from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, ParallelStrategy
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


class KnownRanks(TorchElasticEnvironment):
    """The ranks that this process already knows, whatever started it. They have met already."""

    def __init__(self, variables: RankVariables) -> None:
        super().__init__()
        self._variables = variables

    def world_size(self) -> int:
        """The number of ranks."""
        return self._variables.world_size

    def set_world_size(self, size: int) -> None:
        """Check what Lightning has computed: with another number, rank 0 would train alone in silence."""
        assert size == self._variables.world_size, f"Lightning counts {size} ranks of {self._variables.world_size}"

    def global_rank(self) -> int:
        """This rank."""
        return self._variables.rank

    def local_rank(self) -> int:
        """This rank within its node."""
        return self._variables.local_rank

    def node_rank(self) -> int:
        """The node."""
        return self._variables.node_rank


class _OwnSignalHandler(ParallelStrategy):
    """Keeps the training's handler of SIGTERM, which only raises a flag.

    Lightning's would start a collective in the middle of others. The Trainer installs it just before the barrier with
    which it begins, and removes it in the end.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._handler = signal.getsignal(signal.SIGTERM)

    def barrier(self, name: str | None = None) -> None:
        """Wait for the other ranks, with the training's handler installed."""
        # Elsewhere Python allows no handlers, and the Trainer installs none.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._handler)
        super().barrier(name)  # type: ignore[safe-super]


class ReplicatedStrategy(_OwnSignalHandler, DDPStrategy):
    """Each rank has the whole model."""


class ShardedStrategy(_OwnSignalHandler, ModelParallelStrategy):
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
        return get_model_state_dict(self.model, options=_WHOLE)

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
