"""Exact evaluation: every sample of a split once, on whichever rank; sums are reduced, then divided."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from trainyard.steps.dataset.reader import SplitReader
from trainyard.steps.training.batches import Prefetched, Tensors, as_tensors, to_device
from trainyard.steps.training.plan import even_part
from trainyard.steps.training.precision import Precision
from trainyard.steps.training.tasks.base import Task
from trainyard.steps.training.world import World

Sums = dict[str, torch.Tensor]


@torch.no_grad()
def evaluate_split(
    task: Task, model: torch.nn.Module, split: SplitReader, world: World, precision: Precision, micro_batch_size: int
) -> Sums:
    """The task's sums over the whole split, the same on every rank.

    The ranks' shares differ by one sample at most, and nothing is padded; a rank without samples adds zeros. The
    model is used unwrapped, so that ranks with more batches wait for no one.
    """
    was_training = model.training
    model.eval()
    start, stop = even_part(split.samples, world.rank, world.size)
    sums: Sums = {}
    with Prefetched(_batches(split, start, stop, micro_batch_size, world.device)) as batches:
        for batch in batches:
            with precision.autocast():
                measured = task.measure(model, to_device(batch, world.device))
            for name, value in measured.items():
                sums[name] = sums[name] + value if name in sums else value
    model.train(was_training)
    return _reduce(sums, world)


def _batches(
    split: SplitReader, start: int, stop: int, micro_batch_size: int, device: torch.device
) -> Iterator[Tensors]:
    for first in range(start, stop, micro_batch_size):
        sample_ids = np.arange(first, min(first + micro_batch_size, stop))
        yield as_tensors(split.gather(sample_ids), pin=device.type == "cuda")


def _reduce(sums: Sums, world: World) -> Sums:
    """Add up over ranks. Names and shapes come from a rank that has samples, for those that have none."""
    described = world.gather({name: tuple(value.shape) for name, value in sums.items()})
    shapes = next((shapes for shapes in described if shapes), {})
    reduced = {}
    for name in sorted(shapes):
        zeros = torch.zeros(shapes[name], dtype=torch.float64, device=world.device)
        reduced[name] = world.sum(sums.get(name, zeros).to(torch.float64).contiguous())
    return reduced
