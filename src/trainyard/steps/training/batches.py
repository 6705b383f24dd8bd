"""Samples on their way to the model: gathered from the memory maps in a thread, ahead of the training that waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainyard.steps.dataset.reader import SplitReader
from trainyard.steps.training.order import BlockwiseOrder, SampleOrder
from trainyard.steps.training.plan import MicroBatchRange, Step, TrainingPlan

Tensors = dict[str, torch.Tensor]
"""One tensor per array of the dataset, samples first."""

_BATCHES_AHEAD = 4


@dataclass(frozen=True)
class MicroBatch:
    """What one rank takes through the model at once. `weight` is 0 for a stand-in, else 1."""

    tensors: Tensors
    samples: int
    weight: float
    is_last: bool


class Prefetched:
    """Runs an iterator in a thread, a few items ahead. Its exceptions come up where the items are taken."""

    _END = object()

    def __init__(self, source: Iterable[Any], ahead: int = _BATCHES_AHEAD) -> None:
        self._items: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(ahead)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(source,), name="batches", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            item, failure = self._items.get()
            if failure is not None:
                raise failure
            if item is self._END:
                return
            yield item

    def __enter__(self) -> Iterator[Any]:
        return iter(self)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, also in the middle."""
        self._closed.set()
        self._thread.join()

    def _run(self, source: Iterable[Any]) -> None:
        try:
            for item in source:
                if not self._put((item, None)):
                    return
            self._put((self._END, None))
        except BaseException as failure:
            self._put((None, failure))

    def _put(self, entry: tuple[Any, BaseException | None]) -> bool:
        while not self._closed.is_set():
            try:
                self._items.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False


class TrainingBatches:
    """The steps still to do, each with this rank's micro-batches."""

    def __init__(
        self, split: SplitReader, plan: TrainingPlan, seed: int, rank: int, steps_done: int, device: torch.device
    ) -> None:
        self._split, self._plan, self._seed, self._rank = split, plan, seed, rank
        self._device = device
        self._prefetched = Prefetched(self._gather_all(steps_done))

    def __iter__(self) -> Iterator[tuple[Step, list[MicroBatch]]]:
        for step, micro_batches in self._prefetched:
            yield step, [self._on_device(micro_batch) for micro_batch in micro_batches]

    def first_sample(self) -> Tensors:
        """The dataset's first training sample, the same on every rank."""
        arrays = self._split.gather(np.zeros(1, dtype=np.int64))
        return to_device(as_tensors(arrays, pin=False), self._device)

    def close(self) -> None:
        """End the thread that gathers."""
        self._prefetched.close()

    def _gather_all(self, steps_done: int) -> Iterator[tuple[Step, list[MicroBatch]]]:
        epoch, order = -1, None
        for step in self._plan.steps_after(steps_done):
            if step.epoch != epoch:
                epoch = step.epoch
                order = BlockwiseOrder(SampleOrder(self._split.samples, self._seed, epoch))
            assert order is not None
            ranges = self._plan.micro_batches(step, self._rank)
            yield step, [self._gather(order, micro_range) for micro_range in ranges]

    def _gather(self, order: BlockwiseOrder, micro_range: MicroBatchRange) -> MicroBatch:
        arrays = self._split.gather(order.sample_ids(micro_range.start, micro_range.stop))
        return MicroBatch(
            tensors=as_tensors(arrays, pin=self._device.type == "cuda"),
            samples=micro_range.stop - micro_range.start,
            weight=0.0 if micro_range.is_stand_in else 1.0,
            is_last=micro_range.is_last,
        )

    def _on_device(self, batch: MicroBatch) -> MicroBatch:
        return MicroBatch(to_device(batch.tensors, self._device), batch.samples, batch.weight, batch.is_last)


def as_tensors(arrays: dict[str, npt.NDArray[Any]], *, pin: bool) -> Tensors:
    """Tensors over the same memory; in page-locked memory when they are to go to a GPU."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: tensor.pin_memory() for name, tensor in tensors.items()} if pin else tensors


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """The tensors on the device; the copy to a GPU goes on while the caller does."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
