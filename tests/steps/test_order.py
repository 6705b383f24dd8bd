"""The order of samples is a permutation for any number of them, looks random, and is ready at once."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.steps.training.order import BlockwiseOrder, SampleOrder


@settings(max_examples=150, deadline=None)
@given(samples=st.integers(1, 3000), seed=st.integers(0, 2**70), epoch=st.integers(0, 10**6))
def test_every_sample_once(samples: int, seed: int, epoch: int) -> None:
    order = SampleOrder(samples, seed, epoch).sample_ids(0, samples)
    assert np.array_equal(np.sort(order), np.arange(samples))


@given(samples=st.integers(1, 10**12), seed=st.integers(0, 2**64 - 1), data=st.data())
@settings(deadline=None)
def test_a_position_does_not_depend_on_how_it_is_reached(samples: int, seed: int, data: st.DataObject) -> None:
    order = SampleOrder(samples, seed)
    start = data.draw(st.integers(0, samples - 1))
    stop = data.draw(st.integers(start, min(samples, start + 200)))
    together = order.sample_ids(start, stop)
    one_by_one = [int(order.sample_ids(position, position + 1)[0]) for position in range(start, stop)]
    assert together.tolist() == one_by_one
    assert all(0 <= sample < samples for sample in one_by_one)


def test_blocks_change_nothing() -> None:
    order = SampleOrder(1000, seed=3)
    blockwise = BlockwiseOrder(order, block_samples=64)
    pieces = [blockwise.sample_ids(start, min(start + 7, 1000)) for start in range(0, 1000, 7)]
    assert np.array_equal(np.concatenate(pieces), order.sample_ids(0, 1000))
    assert np.array_equal(blockwise.sample_ids(5, 300), order.sample_ids(5, 300))


def test_seed_and_epoch_change_the_order() -> None:
    orders = [SampleOrder(500, seed, epoch).sample_ids(0, 500) for seed in (0, 1) for epoch in (0, 1)]
    for number, order in enumerate(orders):
        assert all((order != other).mean() > 0.95 for other in orders[:number])


@pytest.mark.parametrize("samples", [5, 10, 37, 64])
def test_every_sample_is_as_likely_at_every_position(samples: int) -> None:
    trials = 4000
    counts = np.zeros((samples, samples))
    for seed in range(trials):
        counts[np.arange(samples), SampleOrder(samples, seed).sample_ids(0, samples)] += 1
    expected = trials / samples
    chi_square = ((counts - expected) ** 2 / expected).sum()
    degrees = (samples - 1) ** 2
    assert abs(chi_square - degrees) < 5 * np.sqrt(2 * degrees)


def test_ten_billion_samples_are_ready_at_once() -> None:
    started = time.perf_counter()
    SampleOrder(10**10, seed=0)
    assert time.perf_counter() - started < 0.01


def test_this_order_stays_as_it_is() -> None:
    """Another order would change what every existing checkpoint resumes to."""
    assert SampleOrder(10, seed=0).sample_ids(0, 10).tolist() == ORDER_OF_TEN
    assert SampleOrder(10**10, seed=1, epoch=2).sample_ids(10**9, 10**9 + 3).tolist() == THREE_OF_TEN_BILLION


ORDER_OF_TEN = [5, 9, 4, 1, 0, 3, 2, 6, 7, 8]
THREE_OF_TEN_BILLION = [4501823138, 2238085497, 3354635675]
