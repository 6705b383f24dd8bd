"""Samples are prefetched in a thread that ends when it should and whose errors are raised."""

from __future__ import annotations

import itertools
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.steps.data.dataset.manifest import ArrayType, read_manifest
from trainyard.steps.data.dataset.reader import SplitReader
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.sample_order import SampleOrder
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.training.samples.batches import (
    SAMPLE_DRAWS,
    MicroBatch,
    Prefetched,
    Prepared,
    Tensors,
    TrainingBatches,
)
from trainyard.steps.training.samples.plan import Step, TrainingPlan

CPU = torch.device("cpu")
SEED = 7


def threads_that_gather() -> int:
    return sum(thread.name.startswith("batches") for thread in threading.enumerate())


def write_numbers(folder: Path, samples: int, shard_samples: int) -> Path:
    """A dataset whose sample n is [n, n] and named n."""
    arrays = {"pair": ArrayType("int32", (2,)), "name": ArrayType("int64", ())}
    with DatasetWriter(folder, arrays, shard_samples) as dataset:
        with dataset.split("train") as split:
            split.add({"pair": np.arange(samples)[:, None].repeat(2, axis=1), "name": np.arange(samples)})
        dataset.finish("numbers", [], {})
    return folder


def split_of(folder: Path) -> SplitReader:
    return SplitReader(folder, read_manifest(folder), "train")


def plan_of(samples: int, micro: int, accumulation: int, world_size: int, epochs: int) -> TrainingPlan:
    return TrainingPlan(samples, divide_batch(micro * accumulation * world_size, micro, world_size), epochs)


def taken(batches: TrainingBatches) -> list[tuple[Step, list[MicroBatch]]]:
    """Take everything that is left; the thread has ended afterwards."""
    steps = list(batches)
    batches.close()
    return steps


def test_items_come_in_order_and_the_thread_ends() -> None:
    with closing(Prefetched(range(100))) as items:
        assert list(items) == list(range(100))
    assert threads_that_gather() == 0


def test_only_the_requested_number_of_items_is_prefetched() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            yield number

    with closing(Prefetched(source(), ahead=3)) as items:
        assert next(iter(items)) == 0
        time.sleep(0.3)
        assert len(made) <= 6
    assert threads_that_gather() == 0


def test_an_error_in_the_thread_is_raised_where_items_are_taken() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with closing(Prefetched(source())) as prefetched:
        items = iter(prefetched)
        assert next(items) == 1
        with pytest.raises(OSError, match="the disk is gone"):
            next(items)


def test_the_ranks_share_each_step_of_the_order(digits: Path) -> None:
    split = split_of(digits)
    plan = TrainingPlan(split.samples, divide_batch(48, 8, 2), epochs=2)
    every_image = split.gather(np.arange(split.samples))["images"]
    ranks = [TrainingBatches(split, plan, SEED, rank, steps_done=25, device=CPU) for rank in (0, 1)]
    for (step, first), (_, second) in zip(*ranks, strict=True):
        expected = every_image[SampleOrder(split.samples, SEED, step.epoch).sample_ids(step.start, step.stop)]
        images = [batch.tensors["images"] for batch in [*first, *second] if not batch.is_stand_in]
        assert np.array_equal(torch.cat(images).numpy(), expected)
    for batches in ranks:
        batches.close()
    assert threads_that_gather() == 0


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> SplitReader:
    return split_of(write_numbers(tmp_path_factory.mktemp("numbers"), samples=103, shard_samples=20))


@given(
    micro=st.integers(1, 9),
    accumulation=st.integers(1, 4),
    world_size=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_every_sample_comes_once_per_epoch_with_its_number(
    numbers: SplitReader, micro: int, accumulation: int, world_size: int, data: st.DataObject
) -> None:
    plan = plan_of(numbers.samples, micro, accumulation, world_size, epochs=2)
    steps_done = data.draw(st.integers(0, plan.total_steps))
    seen: dict[int, list[int]] = {number: [] for number in range(steps_done + 1, plan.total_steps + 1)}
    for rank in range(world_size):
        for step, micro_batches in taken(TrainingBatches(numbers, plan, SEED, rank, steps_done, CPU)):
            assert [batch.is_last for batch in micro_batches] == [False] * (len(micro_batches) - 1) + [True]
            for batch in micro_batches:
                assert batch.tensors["name"].tolist() == batch.sample_ids.tolist()
                assert batch.tensors["pair"].tolist() == [[number, number] for number in batch.sample_ids]
                assert len(batch.sample_ids) <= micro
                if not batch.is_stand_in:
                    seen[step.number] += batch.sample_ids.tolist()
    for step in map(plan.step, range(steps_done + 1, plan.total_steps + 1)):
        order = SampleOrder(numbers.samples, SEED, step.epoch)
        assert seen[step.number] == order.sample_ids(step.start, step.stop).tolist()


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_prepared_of_each_micro_batch_comes_with_it_whatever_was_gathered_together(
    numbers: SplitReader, threads: int
) -> None:
    def prepare(batch: Tensors) -> Prepared:
        assert set(batch) == {"pair", "name"}
        assert threading.current_thread() is not threading.main_thread()
        return Prepared(int(batch["name"].sum()), {"evens": batch["name"][batch["name"] % 2 == 0]})

    plan = plan_of(numbers.samples, micro=3, accumulation=2, world_size=2, epochs=2)
    batches = TrainingBatches(numbers, plan, SEED, 1, 0, CPU, prepare=prepare, threads=threads)
    for _, micro_batches in taken(batches):
        for batch in micro_batches:
            assert batch.loss_terms == batch.sample_ids.sum()
            assert batch.tensors["evens"].tolist() == [number for number in batch.sample_ids if number % 2 == 0]


def test_a_resumed_training_takes_the_same_samples_as_an_uninterrupted_one(numbers: SplitReader) -> None:
    plan = plan_of(numbers.samples, micro=3, accumulation=2, world_size=2, epochs=3)
    whole, rest = (
        [
            (step, [batch.sample_ids.tolist() for batch in micro_batches])
            for step, micro_batches in taken(TrainingBatches(numbers, plan, SEED, 1, steps_done, CPU))
        ]
        for steps_done in (0, 13)
    )
    assert rest == whole[13:]


def test_random_bits_depend_on_seed_epoch_and_sample(numbers: SplitReader) -> None:
    def draws_of(seed: int, world_size: int) -> dict[tuple[int, int], int]:
        plan = plan_of(numbers.samples, 4, 1, world_size, epochs=2)
        return {
            (step.epoch, sample): draw
            for rank in range(world_size)
            for step, micro_batches in taken(TrainingBatches(numbers, plan, seed, rank, 0, CPU, sample_draws=True))
            for batch in micro_batches
            for sample, draw in zip(batch.sample_ids.tolist(), batch.tensors[SAMPLE_DRAWS].tolist(), strict=True)
        }

    draws = draws_of(SEED, world_size=1)
    assert draws == draws_of(SEED, world_size=3)
    assert len({*draws.values(), *draws_of(SEED + 1, world_size=1).values()}) == 2 * 2 * numbers.samples


def test_the_first_sample_is_like_any_batch(numbers: SplitReader) -> None:
    plan = plan_of(numbers.samples, 4, 1, 1, epochs=1)
    batches = TrainingBatches(numbers, plan, SEED, 0, 0, CPU, sample_draws=True)
    first = batches.first_sample()
    assert first["name"].tolist() == [0]
    assert first[SAMPLE_DRAWS].shape == (1,)
    batches.close()


def test_closing_before_the_end(numbers: SplitReader) -> None:
    batches = TrainingBatches(numbers, plan_of(numbers.samples, 1, 1, 1, epochs=100_000), SEED, 0, 0, CPU)
    steps = iter(batches)
    assert [next(steps)[0].number for _ in range(200)] == list(range(1, 201))
    batches.close()
    assert threads_that_gather() == 0


def test_time_spent_waiting_for_samples_is_counted(numbers: SplitReader, monkeypatch: pytest.MonkeyPatch) -> None:
    gather = numbers.gather

    def slow_gather(*arguments: object) -> object:
        time.sleep(0.05)
        return gather(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(numbers, "gather", slow_gather)
    batches = TrainingBatches(numbers, plan_of(numbers.samples, 8, 1, 1, epochs=1), SEED, 0, 0, CPU)
    assert batches.wait_seconds == 0
    steps = iter(batches)
    next(steps)
    first_wait = batches.wait_seconds
    assert first_wait > 0.02
    time.sleep(0.5)
    next(steps)
    assert batches.wait_seconds - first_wait < first_wait / 2, "what was gathered meanwhile costs no waiting"
    batches.close()


def test_a_shard_that_vanishes_while_training_is_named(tmp_path: Path) -> None:
    split = split_of(write_numbers(tmp_path, samples=30, shard_samples=10))
    (tmp_path / "train-00001.pair.bin").unlink()
    batches = TrainingBatches(split, plan_of(30, 5, 1, 1, epochs=1), SEED, 0, 0, CPU)
    with pytest.raises(StepError, match=r"train-00001\.pair\.bin can no longer be mapped into memory: .*No such file"):
        list(batches)
    batches.close()


@pytest.fixture(scope="module")
def many_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten thousand files: two arrays of 5,000 shards."""
    return write_numbers(tmp_path_factory.mktemp("many"), samples=10_000, shard_samples=2)


def test_thousands_of_shards_do_not_need_thousands_of_open_files(many_shards: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 40, hard))
    try:
        split = split_of(many_shards)
        plan = plan_of(split.samples, 50, 1, 1, epochs=1)
        names = [
            batch.tensors["name"]
            for _, micro_batches in taken(TrainingBatches(split, plan, SEED, 0, 0, CPU))
            for batch in micro_batches
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert torch.equal(torch.cat(names).sort().values, torch.arange(10_000))


def test_thousands_of_shards_do_not_delay_the_first_batch(many_shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only shards of the first few batches are mapped before it is there."""
    mapped: list[Any] = []
    map_file = torch.from_file

    def counting_map(file: str, **options: Any) -> Any:
        mapped.append(file)
        return map_file(file, **options)

    monkeypatch.setattr(torch, "from_file", counting_map)
    split = split_of(many_shards)
    batches = TrainingBatches(split, plan_of(split.samples, 32, 1, 1, epochs=1), SEED, 0, 0, CPU)
    next(iter(batches))
    batches.close()
    assert 0 < len(mapped) < 5_000


def test_more_shards_than_maps(many_shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.steps.data.dataset.reader._MOST_MAPS_PER_ARRAY", 100)
    split = split_of(many_shards)
    wanted = np.random.default_rng(0).permutation(10_000)[:3000]
    assert np.array_equal(split.gather(wanted)["name"], wanted)
    assert np.array_equal(split.gather(np.arange(1000))["pair"][:, 1], np.arange(1000))
