"""Samples are gathered ahead, in a thread that ends when it should and whose mistakes come up."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from trainyard.steps.dataset.manifest import read_manifest
from trainyard.steps.dataset.reader import SplitReader
from trainyard.steps.training.batch_arithmetic import divide_batch
from trainyard.steps.training.batches import Prefetched, TrainingBatches
from trainyard.steps.training.order import SampleOrder
from trainyard.steps.training.plan import TrainingPlan


def threads_that_gather() -> int:
    return sum(thread.name == "batches" for thread in threading.enumerate())


def test_items_come_in_order_and_the_thread_ends() -> None:
    with Prefetched(range(100)) as items:
        assert list(items) == list(range(100))
    assert threads_that_gather() == 0


def test_no_more_is_gathered_ahead_than_asked_for() -> None:
    taken: list[int] = []

    def source() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    with Prefetched(source(), ahead=3) as items:
        assert next(items) == 0
        time.sleep(0.3)
        assert len(taken) <= 6
    assert threads_that_gather() == 0


def test_a_mistake_in_the_thread_comes_up_where_items_are_taken() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with Prefetched(source()) as items:
        assert next(items) == 1
        with pytest.raises(OSError, match="the disk is gone"):
            next(items)


def test_ranks_together_get_each_step_of_the_order(digits: Path) -> None:
    split = SplitReader(digits, read_manifest(digits), "train")
    plan = TrainingPlan(split.samples, divide_batch(48, 8, 2), epochs=2)
    every_image = split.gather(np.arange(split.samples))["images"]
    ranks = [TrainingBatches(split, plan, 7, rank, steps_done=25, device=torch.device("cpu")) for rank in (0, 1)]
    for (step, first), (_, second) in zip(*ranks, strict=True):
        expected = every_image[SampleOrder(split.samples, 7, step.epoch).sample_ids(step.start, step.stop)]
        images = [batch.tensors["images"] for batch in [*first, *second] if batch.weight == 1]
        assert np.array_equal(torch.cat(images).numpy(), expected)
    for batches in ranks:
        batches.close()
    assert threads_that_gather() == 0
