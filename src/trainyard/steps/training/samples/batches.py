"""Samples on their way to the model: gathered from memory maps in a thread, ahead of the training."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.sample_order import Ids, SampleOrder, key_stream, mix_with_key
from trainyard.steps.training.samples.plan import MicroBatchRange, Step, TrainingPlan

Tensors = dict[str, torch.Tensor]
"""One tensor per array of the dataset, samples first."""

SAMPLE_DRAWS = "sample_draws"
"""The name of the tensor, in a batch, with 64 random bits per sample: int64 [samples]."""

_DRAWS_OF_SAMPLES = 1
"""Distinguishes their key from those of the sample order."""

_ITEMS_AHEAD = 4
_STRETCH_BYTES = 1 << 20
"""Small steps are gathered together up to this size, to share the overhead."""
_IDS_AT_ONCE = 1 << 14


class MicroBatch(NamedTuple):
    """What one rank passes through the model at once. A stand-in's loss does not count: see `MicroBatchRange`."""

    tensors: Tensors
    sample_ids: Ids
    is_stand_in: bool
    is_last: bool

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(self.sample_ids)


class Prefetched:
    """Runs an iterator in a thread, a few items ahead. Its exceptions are raised where the items are taken."""

    _END = object()

    def __init__(self, source: Iterable[Any], ahead: int = _ITEMS_AHEAD) -> None:
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
        """End the thread, even if items are left."""
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


class _PlannedStep(NamedTuple):
    """One step's part for this rank, before it is gathered."""

    step: Step
    ranges: list[MicroBatchRange]
    sample_ids: Ids
    draws: Ids


class _Stretch(NamedTuple):
    """Some steps' micro-batches on the device, gathered and copied at once."""

    steps: list[tuple[Step, list[MicroBatch]]]
    tensors: Tensors
    copied: torch.cuda.Event | None


class TrainingBatches:
    """The steps that are left, each with this rank's micro-batches.

    `sample_draws` adds 64 random bits per sample to each batch, a pure function of seed, epoch and sample: what is
    drawn from them is the same at any world size, and after any resume.
    """

    def __init__(
        self,
        split: SplitReader,
        plan: TrainingPlan,
        seed: int,
        rank: int,
        steps_done: int,
        device: torch.device,
        *,
        sample_draws: bool = False,
    ) -> None:
        self.wait_seconds = 0.0
        """How long the training has waited for samples in total."""
        self._split, self._plan, self._seed, self._rank = split, plan, seed, rank
        self._device, self._sample_draws = device, sample_draws
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._prefetched = Prefetched(self._gather_all(steps_done))

    def __iter__(self) -> Iterator[tuple[Step, list[MicroBatch]]]:
        stretches = iter(self._prefetched)
        while True:
            asked = time.perf_counter()
            stretch = next(stretches, None)
            self.wait_seconds += time.perf_counter() - asked
            if stretch is None:
                return
            if stretch.copied is not None:
                _hand_over(stretch.tensors, stretch.copied)
            yield from stretch.steps

    def first_sample(self) -> Tensors:
        """Return the dataset's first training sample, the same on every rank."""
        first = np.zeros(1, dtype=np.int64)
        return to_device(self._gather(first, self._draws(first, epoch=0)), self._device)

    def close(self) -> None:
        """End the thread that gathers samples."""
        self._prefetched.close()

    def _gather_all(self, steps_done: int) -> Iterator[_Stretch]:
        """Yield stretches of steps: at first a single step, since the training waits for it, then more."""
        sample_bytes = sum(array.sample_bytes for array in self._split.arrays.values())
        most_steps = max(1, _STRETCH_BYTES // (self._samples_per_step() * sample_bytes))
        planned, at_once = self._plan_all(steps_done), 1
        while steps := list(islice(planned, at_once)):
            yield self._gather_steps(steps)
            at_once = min(2 * at_once, most_steps)

    def _plan_all(self, steps_done: int) -> Iterator[_PlannedStep]:
        """Yield which samples each step takes. Computing many steps at once costs little more than one."""
        most_steps = max(1, _IDS_AT_ONCE // self._samples_per_step())
        first, at_once = steps_done + 1, 1
        while first <= self._plan.total_steps:
            epoch = self._plan.step(first).epoch
            end = min(first + at_once, epoch * self._plan.steps_per_epoch + 1, self._plan.total_steps + 1)
            steps = [self._plan.step(number) for number in range(first, end)]
            ranges = [self._plan.micro_batches(step, self._rank) for step in steps]
            positions = [np.arange(each.start, each.stop) for of_step in ranges for each in of_step]
            order = SampleOrder(self._split.samples, self._seed, epoch)
            sample_ids = order.sample_ids_at(np.concatenate(positions))
            draws = self._draws(sample_ids, epoch)
            start = 0
            for step, of_step in zip(steps, ranges, strict=True):
                here = slice(start, start := start + sum(each.stop - each.start for each in of_step))
                yield _PlannedStep(step, of_step, sample_ids[here], draws[here])
            first, at_once = end, most_steps

    def _samples_per_step(self) -> int:
        """Return the size of this rank's share of a whole step."""
        return self._plan.batch.global_batch_size // self._plan.batch.world_size

    def _draws(self, sample_ids: Ids, epoch: int) -> Ids:
        """Return 64 random bits for each sample, or nothing if not asked for."""
        if not self._sample_draws:
            return np.empty(0, dtype=np.int64)
        return mix_with_key(sample_ids, next(key_stream(self._seed, epoch, _DRAWS_OF_SAMPLES)))

    def _gather_steps(self, planned: Sequence[_PlannedStep]) -> _Stretch:
        sample_ids = np.concatenate([step.sample_ids for step in planned])
        draws = np.concatenate([step.draws for step in planned])
        # The stream's context also selects its GPU in this thread, which is the first one by default.
        with nullcontext() if self._copies is None else torch.cuda.stream(self._copies):
            tensors = to_device(self._gather(sample_ids, draws), self._device)
            copied = None if self._copies is None else self._copies.record_event()
        micro_batches = _cut(tensors, sample_ids, [each for step in planned for each in step.ranges])
        steps = [(step.step, list(islice(micro_batches, len(step.ranges)))) for step in planned]
        return _Stretch(steps, tensors, copied)

    def _gather(self, sample_ids: Ids, draws: Ids) -> Tensors:
        is_pinned = self._device.type == "cuda"
        tensors = {
            name: torch.empty((len(sample_ids), *array.shape), dtype=_torch_dtype(array.dtype), pin_memory=is_pinned)
            for name, array in self._split.arrays.items()
        }
        self._split.gather(sample_ids, {name: tensor.numpy() for name, tensor in tensors.items()})
        if self._sample_draws:
            tensors |= as_tensors({SAMPLE_DRAWS: draws}, pin=is_pinned)
        return tensors


def _cut(tensors: Tensors, sample_ids: Ids, ranges: Sequence[MicroBatchRange]) -> Iterator[MicroBatch]:
    """Yield the micro-batches of what was gathered together; they share its memory."""
    sizes = [each.stop - each.start for each in ranges]
    pieces = zip(*(tensor.split(sizes) for tensor in tensors.values()), strict=True)
    start = 0
    for each, size, of_arrays in zip(ranges, sizes, pieces, strict=True):
        yield MicroBatch(
            tensors=dict(zip(tensors, of_arrays, strict=True)),
            sample_ids=sample_ids[start : start + size],
            is_stand_in=each.is_stand_in,
            is_last=each.is_last,
        )
        start += size


def _hand_over(tensors: Tensors, copied: torch.cuda.Event) -> None:
    """Let the training's stream wait for the copy, and keep the copy's memory until that stream is done with it."""
    stream = torch.cuda.current_stream()
    stream.wait_event(copied)
    for tensor in tensors.values():
        tensor.record_stream(stream)


def _torch_dtype(name: str) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=name)).dtype


def as_tensors(arrays: dict[str, npt.NDArray[Any]], *, pin: bool) -> Tensors:
    """Return tensors over the same memory, or in pinned memory if they are to go to a GPU."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: tensor.pin_memory() for name, tensor in tensors.items()} if pin else tensors


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """Return the tensors on the device; the copy to a GPU is asynchronous."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
