"""The planned samples as the iterable that Lightning takes for a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.steps.data.sample_order import Ids
from trainyard.steps.runtime.world import World
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
        self._plan = run.plan
        self.position: Position
        """Of what was yielded last."""

    def __len__(self) -> int:
        """Micro-batches in a whole epoch, also if the training continues in the middle of one."""
        return self.micro_batches_until(self._plan.steps_per_epoch)

    def micro_batches_until(self, number: int) -> int:
        """Return how many micro-batches of its epoch have been taken once step `number` is done."""
        step = self._plan.step(number)
        earlier = (number - 1) % self._plan.steps_per_epoch
        # Steps before an epoch's last are all as large as the first.
        pieces = len(self._plan.micro_batches(self._plan.step(1), 0)) if earlier else 0
        return pieces * earlier + len(self._plan.micro_batches(step, 0))

    def __iter__(self) -> Iterator[Any]:
        for step, micro_batches in self._steps:
            for index, micro_batch in enumerate(micro_batches):
                self.position = Position(step, micro_batches, index)
                yield micro_batch.tensors
            if step.ends_epoch:
                return


class ValidationShare:
    """Yields this rank's share of the validation split, for a module that validates by itself.

    Every rank has equally many batches: with a sharded model, ranks compute together.
    """

    def __init__(self, run: TrainingRun) -> None:
        assert run.validation.split is not None
        self._split = run.validation.split
        self._pieces = pieces_of_share(self._split.samples, run.world, run.settings.micro_batch_size)

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[Tensors]:
        for sample_ids in self._pieces:
            yield as_tensors(self._split.gather(sample_ids), pin=False)


def pieces_of_share(samples: int, world: World, micro_batch_size: int) -> list[Ids]:
    """Return one rank's share of a split, in as many pieces as every other rank's.

    A piece without samples repeats one, as Lightning's own sampler does: a mean over none would be NaN for all ranks.
    """
    start, stop = even_part(samples, world.rank, world.size)
    largest_share = -(-samples // world.size)
    number = -(-largest_share // micro_batch_size)
    bounds = [even_part(stop - start, piece, number) for piece in range(number)]
    ids = np.arange(samples, dtype=np.int64)
    return [ids[start + first : start + last] if first < last else ids[:1] for first, last in bounds]
