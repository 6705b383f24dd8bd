"""Samples on their way to the model: gathered from memory maps in a thread, ahead of the training."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.mixture import Mixture
from trainyard.steps.data.sample_order import Ids, key_stream, mix_with_key
from trainyard.steps.training.samples.plan import NO_TOKENS, MicroBatchRange, Step, TokenCounts, TrainingPlan

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


class Prepared(NamedTuple):
    """What is known of a micro-batch in main memory, before it is on the device."""

    loss_terms: int
    tensors: Tensors
    """To be added to the micro-batch's."""
    counts: TokenCounts = NO_TOKENS


class MicroBatch(NamedTuple):
    """What one rank passes through the model at once. A stand-in's loss does not count: see `MicroBatchRange`."""

    tensors: Tensors
    sample_ids: Ids
    is_stand_in: bool
    is_last: bool
    loss_terms: int = 0
    """Of how many terms its loss is the sum, where that varies. They and the tokens of a stand-in do not count."""
    counts: TokenCounts = NO_TOKENS


class Prefetched:
    """Runs an iterator in a thread, a few items ahead. Its exceptions are raised where the items are taken."""

    _END = object()

    def __init__(self, source: Iterable[Any], ahead: int = _ITEMS_AHEAD) -> None:
        self._source = iter(source)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        # One is made while as many as `ahead` wait.
        self._items = deque(self._next() for _ in range(ahead + 1))

    def __iter__(self) -> Iterator[Any]:
        while (item := self._items.popleft().result()) is not self._END:
            self._items.append(self._next())
            yield item

    def close(self) -> None:
        """End the thread, even if items are left."""
        self._thread.shutdown(cancel_futures=True)
        self._source = iter(())  # what the iterator itself has opened is closed with it

    def _next(self) -> Future[Any]:
        return self._thread.submit(next, self._source, self._END)


class Batches(Protocol):
    """The steps that are left, each with this rank's micro-batches."""

    wait_seconds: float
    """How long the training has waited for samples in total."""

    def __iter__(self) -> Iterator[tuple[Step, list[MicroBatch]]]:
        """Yield the steps in order."""

    def first_sample(self) -> Tensors:
        """Return the first training sample, the same on every rank, for engines that warm up with it."""

    def close(self) -> None:
        """End what reads ahead."""


class _PlannedStep(NamedTuple):
    """One step's part for this rank, before it is gathered."""

    step: Step
    ranges: list[MicroBatchRange]
    sample_ids: Ids
    draws: Ids


class _Stretch(NamedTuple):
    """Some steps' micro-batches on the device, gathered and copied at once."""

    steps: list[tuple[Step, list[MicroBatch]]]
    tensors: list[torch.Tensor]
    copied: torch.cuda.Event | None


class TrainingBatches:
    """The steps that are left, each with this rank's micro-batches.

    `sample_draws` adds 64 random bits per sample to each batch, a pure function of seed, epoch and sample: what is
    drawn from them is the same at any world size, and after any resume.
    """

    def __init__(
        self,
        split: SplitReader | Mixture,
        plan: TrainingPlan,
        seed: int,
        rank: int,
        steps_done: int,
        device: torch.device,
        *,
        sample_draws: bool = False,
        prepare: Callable[[Tensors], Prepared] | None = None,
        threads: int = 1,
    ) -> None:
        """`threads` gather different stretches of steps at the same time; they are handed over in order.

        They also `prepare` each micro-batch.
        """
        self.wait_seconds = 0.0
        """How long the training has waited for samples in total."""
        self._split, self._plan, self._seed, self._rank = split, plan, seed, rank
        self._device, self._sample_draws = device, sample_draws
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._threads, self._prepare = threads, prepare
        self._prefetched = Prefetched(self._gather_all(steps_done), ahead=max(_ITEMS_AHEAD, threads))

    def __iter__(self) -> Iterator[tuple[Step, list[MicroBatch]]]:
        stretches = iter(self._prefetched)
        while True:
            asked = time.perf_counter()
            stretch = next(stretches, None)
            self.wait_seconds += time.perf_counter() - asked
            if stretch is None:
                return
            if stretch.copied is not None:
                # The training's stream waits for the copy, whose memory is kept until that stream is done with it.
                stream = torch.cuda.current_stream()
                stream.wait_event(stretch.copied)
                for tensor in stretch.tensors:
                    tensor.record_stream(stream)
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
        with ThreadPoolExecutor(self._threads, thread_name_prefix="rows") as readers:
            gathering: deque[tuple[list[_PlannedStep], Future[tuple[Tensors, list[Prepared]]]]] = deque()
            planned, at_once = self._plan_all(steps_done), 1
            while steps := list(islice(planned, at_once)):
                at_once = min(2 * at_once, most_steps)
                gathering.append((steps, readers.submit(self._gather_planned, steps)))
                if len(gathering) >= self._threads:
                    yield self._on_device(*gathering.popleft())
            while gathering:
                yield self._on_device(*gathering.popleft())

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
            drawn = self._split.order(self._seed, epoch).sample_ids_at(np.concatenate(positions))
            draws = self._draws(drawn, epoch)
            sample_ids = drawn % self._split.stored_samples
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
        return draws_of_samples(sample_ids, self._seed, epoch)

    def _gather_planned(self, planned: Sequence[_PlannedStep]) -> tuple[Tensors, list[Prepared]]:
        """Return some steps' samples in main memory, and what is prepared of their micro-batches, if anything."""
        sample_ids = np.concatenate([step.sample_ids for step in planned])
        tensors = self._gather(sample_ids, np.concatenate([step.draws for step in planned]))
        if self._prepare is None:
            return tensors, []
        return tensors, [self._prepare(piece) for piece in _pieces(tensors, _sizes(planned))]

    def _on_device(
        self, planned: Sequence[_PlannedStep], gathering: Future[tuple[Tensors, list[Prepared]]]
    ) -> _Stretch:
        gathered, prepared = gathering.result()
        # The stream's context also selects its GPU in this thread, which is the first one by default.
        with nullcontext() if self._copies is None else torch.cuda.stream(self._copies):
            tensors = to_device(gathered, self._device)
            prepared = [each._replace(tensors=to_device(each.tensors, self._device)) for each in prepared]
            copied = None if self._copies is None else self._copies.record_event()
        micro_batches = _cut(tensors, prepared, planned)
        steps = [(step.step, list(islice(micro_batches, len(step.ranges)))) for step in planned]
        on_device = [*tensors.values(), *(tensor for each in prepared for tensor in each.tensors.values())]
        return _Stretch(steps, on_device, copied)

    def _gather(self, sample_ids: Ids, draws: Ids) -> Tensors:
        is_pinned = self._device.type == "cuda"
        tensors = {}
        for name, array in self._split.arrays.items():
            dtype = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
            tensors[name] = torch.empty((len(sample_ids), *array.shape), dtype=dtype, pin_memory=is_pinned)
        self._split.gather(sample_ids, {name: tensor.numpy() for name, tensor in tensors.items()})
        if self._sample_draws:
            tensors |= as_tensors({SAMPLE_DRAWS: draws}, pin=is_pinned)
        return tensors


def _sizes(planned: Sequence[_PlannedStep]) -> list[int]:
    return [each.stop - each.start for step in planned for each in step.ranges]


def _pieces(tensors: Tensors, sizes: list[int]) -> Iterator[Tensors]:
    """Yield the tensors of each micro-batch that was gathered with others; they share memory."""
    for of_arrays in zip(*(tensor.split(sizes) for tensor in tensors.values()), strict=True):
        yield dict(zip(tensors, of_arrays, strict=True))


def _cut(tensors: Tensors, prepared: list[Prepared], planned: Sequence[_PlannedStep]) -> Iterator[MicroBatch]:
    """Yield the micro-batches of what was gathered together."""
    sample_ids = np.concatenate([step.sample_ids for step in planned])
    ranges = [each for step in planned for each in step.ranges]
    sizes = _sizes(planned)
    known = prepared or [Prepared(0, {})] * len(ranges)
    ids = np.split(sample_ids, np.cumsum(sizes)[:-1])
    for each, own_ids, piece, ready in zip(ranges, ids, _pieces(tensors, sizes), known, strict=True):
        yield MicroBatch(
            tensors={**piece, **ready.tensors},
            sample_ids=own_ids,
            is_stand_in=each.is_stand_in,
            is_last=each.is_last,
            loss_terms=0 if each.is_stand_in else ready.loss_terms,
            counts=NO_TOKENS if each.is_stand_in else ready.counts,
        )


def draws_of_samples(sample_ids: Ids, seed: int, epoch: int) -> Ids:
    """Return 64 random bits for each sample: a pure function of seed, epoch and sample."""
    return mix_with_key(sample_ids, next(key_stream(seed, epoch, _DRAWS_OF_SAMPLES)))


def as_tensors(arrays: dict[str, npt.NDArray[Any]], *, pin: bool) -> Tensors:
    """Return tensors over the same memory, or in pinned memory if they are to go to a GPU."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: tensor.pin_memory() for name, tensor in tensors.items()} if pin else tensors


def to_device(tensors: Tensors, device: torch.device) -> Tensors:
    """Return the tensors on the device; the copy to a GPU is asynchronous."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}
