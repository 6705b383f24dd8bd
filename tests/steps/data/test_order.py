"""The order of samples is a permutation for any number of them, cannot be told from chance, and is ready at once."""

from __future__ import annotations

import itertools
import math
import pickle
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.steps.data.sample_order import SampleOrder
from trainyard.steps.training.samples.plan import TrainingPlan

LEAST_PROBABILITY = 1e-4
"""Below this, a chi-square test counts as failed. Some fifty tests are made, always on the same seeds."""


def probability(counts: npt.ArrayLike, degrees: int | None = None) -> float:
    """How probable counts as uneven as these are, if all cells are equally likely (Pearson's chi-square test)."""
    from scipy.stats import chi2  # seconds, which every process that collects tests would take

    cells = np.asarray(counts, dtype=float).ravel()
    expected = cells.sum() / len(cells)
    assert expected >= 5, "too few counts per cell for the test to mean anything"
    return float(chi2.sf(((cells - expected) ** 2 / expected).sum(), len(cells) - 1 if degrees is None else degrees))


def orders(samples: int, trials: int, vary: str) -> Iterator[npt.NDArray[np.int64]]:
    """Whole orders: of many seeds, or of many epochs of one seed."""
    for trial in range(trials):
        order = SampleOrder(samples, trial, 1) if vary == "seed" else SampleOrder(samples, 5, trial)
        yield order.sample_ids(0, samples)


@settings(max_examples=150, deadline=None)
@given(samples=st.integers(1, 20_000), seed=st.integers(0, 2**70), epoch=st.integers(0, 10**6))
def test_every_sample_once(samples: int, seed: int, epoch: int) -> None:
    order = SampleOrder(samples, seed, epoch).sample_ids(0, samples)
    assert np.array_equal(np.sort(order), np.arange(samples))


@pytest.mark.parametrize("seed", [0, 1])
def test_every_sample_once_for_every_small_number(seed: int) -> None:
    for samples in [*range(1, 300), *(2**power + near for power in range(9, 18) for near in (-1, 0, 1))]:
        order = SampleOrder(samples, seed).sample_ids(0, samples)
        assert np.array_equal(np.sort(order), np.arange(samples)), samples


@given(samples=st.integers(1, 10**15), seed=st.integers(0, 2**64 - 1), data=st.data())
@settings(deadline=None)
def test_a_position_does_not_depend_on_how_it_is_reached(samples: int, seed: int, data: st.DataObject) -> None:
    order = SampleOrder(samples, seed)
    start = data.draw(st.integers(0, samples - 1))
    stop = data.draw(st.integers(start, min(samples, start + 50)))
    together = order.sample_ids(start, stop)
    one_by_one = [int(order.sample_ids(position, position + 1)[0]) for position in range(start, stop)]
    assert together.tolist() == one_by_one
    assert order.sample_ids_at(np.arange(start, stop)[::-1]).tolist() == one_by_one[::-1]
    assert all(0 <= sample < samples for sample in one_by_one)


def test_more_positions_than_are_computed_at_once() -> None:
    order = SampleOrder(50_000, seed=3)
    pieces = [order.sample_ids(start, min(start + 7000, 50_000)) for start in range(0, 50_000, 7000)]
    assert np.array_equal(np.concatenate(pieces), order.sample_ids(0, 50_000))


@given(samples=st.integers(1, 300), micro=st.sampled_from([1, 2, 8]), world_size=st.sampled_from([1, 2, 4]))
@settings(max_examples=30, deadline=None)
def test_equal_at_any_world_size_and_micro_batch(samples: int, micro: int, world_size: int) -> None:
    plan = TrainingPlan(samples, divide_batch(32, micro, world_size), epochs=1)
    order = SampleOrder(samples, seed=9, epoch=1)
    taken = [
        order.sample_ids(part.start, part.stop)
        for step in map(plan.step, range(1, plan.total_steps + 1))
        for rank in range(world_size)
        for part in plan.micro_batches(step, rank)
        if not part.is_stand_in
    ]
    assert np.array_equal(np.concatenate(taken), order.sample_ids(0, samples))


def test_seed_and_epoch_change_the_order() -> None:
    different = [SampleOrder(500, seed, epoch).sample_ids(0, 500) for seed in (0, 1, 2**32) for epoch in (0, 1, 2)]
    for one, other in itertools.combinations(different, 2):
        assert (one != other).mean() > 0.95


@pytest.mark.parametrize("vary", ["seed", "epoch"])
@pytest.mark.parametrize("samples", [3, 4, 5])
def test_every_whole_order_is_as_likely(samples: int, vary: str) -> None:
    counts = dict.fromkeys(itertools.permutations(range(samples)), 0)
    for order in orders(samples, 30 * math.factorial(samples), vary):
        counts[tuple(order.tolist())] += 1
    assert probability(list(counts.values())) > LEAST_PROBABILITY


@pytest.mark.parametrize("vary", ["seed", "epoch"])
@pytest.mark.parametrize("samples", [7, 10, 37, 64, 100])
def test_every_sample_is_as_likely_at_every_position_and_after_every_other(samples: int, vary: str) -> None:
    at_position, after = np.zeros((samples, samples)), np.zeros((samples, samples))
    for order in orders(samples, 1000, vary):
        at_position[np.arange(samples), order] += 1
        np.add.at(after, (order[:-1], order[1:]), 1)
    assert probability(at_position, degrees=(samples - 1) ** 2) > LEAST_PROBABILITY
    assert np.trace(after) == 0
    assert probability(after[~np.eye(samples, dtype=bool)]) > LEAST_PROBABILITY


@pytest.mark.parametrize("samples", [5000, 2**17, 2**20 + 1, 10**10])
def test_large_orders_have_no_pattern(samples: int) -> None:
    """Samples in 32 classes by number: each class as often, each as often after each, and all distances alike."""
    classes, follows, distances = np.zeros(32), np.zeros((32, 32)), np.zeros(64)
    for trial in range(40):
        order = SampleOrder(samples, trial % 4, trial)
        start = trial * 7919 % (samples - 4999)
        sample_ids = order.sample_ids(start, start + 5000)
        class_of = sample_ids * 32 // samples
        classes += np.bincount(class_of, minlength=32)
        np.add.at(follows, (class_of[:-1:2], class_of[1::2]), 1)
        distances += np.bincount((sample_ids[1::2] - sample_ids[:-1:2]) % samples * 64 // samples, minlength=64)
    assert probability(classes) > LEAST_PROBABILITY
    assert probability(follows) > LEAST_PROBABILITY
    assert probability(distances) > LEAST_PROBABILITY


def test_ten_billion_samples_are_ready_as_soon_as_a_million() -> None:
    def seconds(samples: int, epoch: int) -> float:
        started = time.perf_counter()
        SampleOrder(samples, seed=0, epoch=epoch).sample_ids(0, 32)
        return time.perf_counter() - started

    billions, million = (min(seconds(samples, epoch) for epoch in range(50)) for samples in (10**10, 10**6))
    assert billions < 10 * million


def test_an_order_is_as_small_for_any_number_of_samples() -> None:
    assert len(pickle.dumps(SampleOrder(10**10, seed=0))) < 1000


def test_this_order_stays_as_it_is() -> None:
    """Another order would change what every existing checkpoint resumes to."""
    assert SampleOrder(10, seed=0).sample_ids(0, 10).tolist() == ORDER_OF_TEN
    assert SampleOrder(10**10, seed=1, epoch=2).sample_ids(10**9, 10**9 + 3).tolist() == THREE_OF_TEN_BILLION


ORDER_OF_TEN = [4, 5, 8, 3, 0, 7, 2, 9, 6, 1]
THREE_OF_TEN_BILLION = [7435064884, 6433853138, 1967602444]
