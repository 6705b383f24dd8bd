"""Exact evaluation: every sample of a split once, on whichever rank; sums are reduced, then divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import torch

from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.sample_order import Ids
from trainyard.steps.runtime.world import World
from trainyard.steps.training.agreement import LateSum
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.samples.batches import Prefetched, Tensors, as_tensors, to_device
from trainyard.steps.training.samples.plan import even_part
from trainyard.steps.training.tasks.task import Task, require_sums

Sums = dict[str, torch.Tensor]


class EvaluationStopped(Exception):
    """A rank was asked to stop, and all ranks left the evaluation."""


@torch.no_grad()
def evaluate_split(
    task: Task,
    model: torch.nn.Module,
    split: SplitReader,
    world: World,
    precision: Precision,
    micro_batch_size: int,
    *,
    samples: int | None = None,
    in_lockstep: bool = False,
    stop_is_raised: Callable[[], bool] | None = None,
    on_batch: Callable[[], None] = lambda: None,
) -> Sums:
    """Return the task's sums over the split, or over so many samples taken evenly from it, the same on every rank.

    The ranks' shares differ by one sample at most; a rank without samples adds zeros. If every rank must make as many
    forward passes as the others (`in_lockstep`), one without a batch left computes a sample that is not counted.
    `stop_is_raised` is called between batches: soon after it is true on any rank, all raise EvaluationStopped.
    `on_batch` is called before each batch.
    """
    was_training = model.training
    model.eval()
    samples = split.samples if samples is None else samples
    own = np.arange(*even_part(samples, world.rank, world.size)) * split.samples // samples
    rounds = math.ceil(math.ceil(samples / world.size) / micro_batch_size)
    sums: Sums = {}
    pending: LateSum | None = None
    try:
        with closing(Prefetched(_batches(split, own, micro_batch_size, world.device))) as prefetched:
            batches = iter(prefetched)
            for _ in range(rounds):
                on_batch()
                if stop_is_raised is not None:
                    if pending is not None and pending.read()[0] > 0:
                        raise EvaluationStopped
                    # Read in the next round; of the last one never: nothing is left to leave, and the next step asks.
                    pending = LateSum(torch.tensor([float(stop_is_raised())], device=world.device))
                batch = next(batches, None)
                if batch is None and not in_lockstep:
                    continue
                with precision.autocast():
                    tensors = (
                        as_tensors(split.gather(np.zeros(1, dtype=np.int64)), pin=False) if batch is None else batch
                    )
                    measured = require_sums(task.measure(model, to_device(tensors, world.device)))
                for name, value in measured.items():
                    value = torch.zeros_like(value) if batch is None else value
                    sums[name] = sums[name] + value if name in sums else value
    finally:
        model.train(was_training)
    return _reduce(sums, world)


def _batches(split: SplitReader, sample_ids: Ids, micro_batch_size: int, device: torch.device) -> Iterator[Tensors]:
    for first in range(0, len(sample_ids), micro_batch_size):
        yield as_tensors(split.gather(sample_ids[first : first + micro_batch_size]), pin=device.type == "cuda")


def _reduce(sums: Sums, world: World) -> Sums:
    """Add up over ranks. Names and shapes come from a rank that has samples, for those that have none."""
    described = world.gather({name: tuple(value.shape) for name, value in sums.items()})
    shapes = next((shapes for shapes in described if shapes), {})
    reduced = {}
    for name in sorted(shapes):
        zeros = torch.zeros(shapes[name], dtype=torch.float64, device=world.device)
        reduced[name] = world.sum(sums.get(name, zeros).to(zeros).contiguous())
    return reduced
