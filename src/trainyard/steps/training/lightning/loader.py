"""The planned samples as the iterable that Lightning takes for a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden

from trainyard.steps.training.loop import TrainingRun
from trainyard.steps.training.samples.batches import MicroBatch, Tensors, as_tensors
from trainyard.steps.training.samples.plan import Step, even_part


@dataclass(frozen=True)
class Position:
    """Where the training is: a micro-batch of a step."""

    step: Step
    micro_batches: list[MicroBatch]
    index: int

    @property
    def micro_batch(self) -> MicroBatch:
        """The micro-batch."""
        return self.micro_batches[self.index]

    @property
    def is_first(self) -> bool:
        """Whether it is its step's first."""
        return self.index == 0


class PlannedLoader:
    """Yields the tensors of each micro-batch, one epoch at a time, from where the training continues."""

    def __init__(self, run: TrainingRun) -> None:
        self._steps = iter(run.batches)
        plan = run.plan
        last = plan.step(plan.steps_per_epoch)
        pieces = len(plan.micro_batches(plan.step(1), 0)) if plan.steps_per_epoch > 1 else 0
        self._length = pieces * (plan.steps_per_epoch - 1) + len(plan.micro_batches(last, 0))
        self.position: Position
        """Of what was yielded last."""

    def __len__(self) -> int:
        """Micro-batches in a whole epoch, also if the training continues in the middle of one."""
        return self._length

    def __iter__(self) -> Iterator[Any]:
        for step, micro_batches in self._steps:
            for index, micro_batch in enumerate(micro_batches):
                self.position = Position(step, micro_batches, index)
                yield micro_batch.tensors
            if step.ends_epoch:
                return


class ValidationShare:
    """Yields this rank's share of the validation split, for a module that validates by itself."""

    def __init__(self, run: TrainingRun) -> None:
        assert run.validation_split is not None
        self._split, self._size = run.validation_split, run.settings.micro_batch_size
        self._start, self._stop = even_part(self._split.samples, run.world.rank, run.world.size)

    @classmethod
    def of(cls, module: LightningModule, run: TrainingRun) -> ValidationShare | None:
        """Return the share, or None if there is nothing to validate on or the module has no validation_step."""
        has_step = is_overridden("validation_step", module)
        return cls(run) if has_step and run.validation_split is not None else None

    def __len__(self) -> int:
        return -(-(self._stop - self._start) // self._size)

    def __iter__(self) -> Iterator[Tensors]:
        for start in range(self._start, self._stop, self._size):
            sample_ids = np.arange(start, min(start + self._size, self._stop), dtype=np.int64)
            yield as_tensors(self._split.gather(sample_ids), pin=False)
