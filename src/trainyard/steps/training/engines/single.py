"""One process: on one GPU, or, if asked for, on all of one machine with torch.nn.DataParallel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.steps.training import Training, TrainSingle
from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.training.engines.engine import EngineParts, ReplicaEngine


class SingleEngine(ReplicaEngine):
    """The model itself. DataParallel copies it to every GPU in each forward pass, and runs a thread for each."""

    name = "single"

    @classmethod
    def check(cls, settings: Training, batch: BatchArithmetic) -> None:
        """Refuse several processes, and what DataParallel's copies cannot have."""
        super().check(settings, batch)
        if batch.world_size > 1:
            raise SetupError(
                f"train_single is one process, and {batch.world_size} were started; use train_ddp, or start one"
            )
        if not _is_data_parallel(settings):
            return
        for name in ("activation_checkpointing", "activation_offload", "compile"):
            if getattr(settings, name):
                flag = name.replace("_", "-")
                raise StepError(f"--data-parallel does not work with --{flag}; use train_ddp, or leave one out")

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        if _is_data_parallel(parts.settings) and torch.cuda.device_count() > 1:
            self.model = torch.nn.DataParallel(self._replica)
            parts.world.log(f"DataParallel on {torch.cuda.device_count()} GPUs")

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[object]:
        """Return nothing to enter: there is no one to exchange gradients with."""
        return nullcontext()


def _is_data_parallel(settings: Training) -> bool:
    return isinstance(settings, TrainSingle) and settings.data_parallel
