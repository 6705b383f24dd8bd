"""The engine that Lightning drives: a LightningModule, and Lightning's own checkpoint as one fragment."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins import CheckpointIO
from torch.distributed.tensor import DTensor

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.steps.training import Training, TrainLightning
from trainyard.steps.runtime.errors import StepError, first_line
from trainyard.steps.training.checkpoints.state_files import pieces_in
from trainyard.steps.training.engines.engine import EngineParts, refuse_adapters_and_optimizers
from trainyard.steps.training.engines.replicas import ReplicaEngine
from trainyard.steps.training.engines.shared_model import RowsOfRank
from trainyard.steps.training.fragments import MODEL_KEY, Fragment, tensors_of, whole_tensor
from trainyard.steps.training.precision import LossScale

_KEY = "lightning/checkpoint"


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


class LightningEngine(ReplicaEngine):
    """One replica per rank. Lightning wraps it, runs it, and decides when gradients are exchanged.

    A checkpoint holds what Lightning puts into its own: weights, optimizers, schedulers, loops, callbacks, and what the
    module's hooks add.
    """

    name = "lightning"

    @classmethod
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """Refuse adapters, since Lightning's checkpoints would hold the base model too, and an average of weights."""
        no_adapters = "Lightning, whose checkpoints would hold the base model too"
        refuse_adapters_and_optimizers(settings, no_adapters, "Lightning, whose checkpoints hold AdamW's state")
        if settings.ema_decay > 0:
            raise StepError(
                "--ema-decay does not work with train_lightning, whose weights Lightning holds; use train_ddp"
            )

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self.is_sharded = isinstance(parts.settings, TrainLightning) and parts.settings.strategy == "fsdp2"
        self.replica = None if self.is_sharded else self.model
        self.checkpoint_io = CheckpointInMemory()
        self.trainer: Trainer | None = None
        self.unused_parameters = False
        """Whether some parameters get no gradient, which DDP must be told."""
        self._state: Fragment | None = None
        """What was restored, and in the end what is to be saved: while there is no Trainer."""
        if not self.prepares_model():
            self.loss_scale = LossScale(self.world.device, enabled=False)  # Lightning has its own

    def prepares_model(self) -> bool:
        """Return whether the model is a task's, not a module of the user's."""
        return not isinstance(self.model, LightningModule)

    def warm_up(self, loss: Callable[[], torch.Tensor]) -> None:
        """Find out whether there are parameters without a gradient. A module of the user's says so by itself."""
        self.unused_parameters = self.prepares_model() and self.find_unused_parameters(loss)

    def prepare_to_restore(self, folder: Path, files: list[str]) -> None:
        """Make room for Lightning's checkpoint, whose size differs from one to the next."""
        # Rank 0 had it, whose file is the first.
        size_bytes = sum(piece.stop - piece.start for piece in pieces_in(folder / files[0]) if piece.key == _KEY)
        self._state = _fragment(torch.empty(size_bytes, dtype=torch.uint8), is_replicated=True)

    def end(self) -> None:
        """Keep the state as it is now for the last checkpoint: afterwards Lightning closes its epoch."""
        self._state, self.trainer = next(iter(self.fragments()), None), None

    def fragments(self) -> list[Fragment]:
        """Return Lightning's checkpoint as bytes, on rank 0; while it is restored, to be read into, on every rank."""
        if self.trainer is None:
            return [] if self._state is None else [self._state]
        self.trainer.save_checkpoint("")
        if not self.world.is_main:
            return []
        buffer = io.BytesIO()
        torch.save(self.checkpoint_io.checkpoint, buffer)
        self.checkpoint_io.checkpoint = None
        return [_fragment(torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8), is_replicated=False)]

    def fragments_restored(self) -> None:
        """Unpack what was read, for Lightning to load when it starts. Nothing in it can run code."""
        assert self._state is not None
        try:
            checkpoint: dict[str, Any] = torch.load(
                io.BytesIO(self._state.values.numpy().tobytes()), map_location="cpu", weights_only=True
            )
        except Exception as failure:  # torch raises all kinds
            raise StepError(
                "Lightning's checkpoint cannot be read without running code from it: save plain values in hparams and "
                f"on_save_checkpoint ({first_line(failure)})"
            ) from None
        self.checkpoint_io.checkpoint = checkpoint

    def weights(self) -> list[Fragment]:
        """Return this rank's rows of what is sharded, and all other tensors whole."""
        shard, found = RowsOfRank(self.world.rank, self.world.size), []
        for name, tensor in tensors_of(self.model).items():
            if isinstance(tensor, DTensor):
                start, values = shard.elements(tensor.shape)[0], tensor.to_local().detach().view(-1)
                found.append(Fragment(f"{MODEL_KEY}{name}", tuple(tensor.shape), start, values))
            else:
                found.append(whole_tensor(f"{MODEL_KEY}{name}", tensor))
        return found


def _fragment(values: torch.Tensor, *, is_replicated: bool) -> Fragment:
    return Fragment(_KEY, (values.numel(),), 0, values, is_replicated)
