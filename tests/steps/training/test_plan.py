"""Which rank takes which samples: arithmetic that needs no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.settings.batch_arithmetic import divide_batch
from trainyard.settings.steps.training import TrainDDP
from trainyard.steps.training.samples.plan import TrainingPlan, even_part
from trainyard.steps.training.schedule import Schedule


def test_accumulation_follows_from_the_other_numbers() -> None:
    batch = divide_batch(global_batch_size=64, micro_batch_size=8, world_size=2)
    assert batch.accumulation_steps == 4
    assert str(batch) == "global batch 64 = micro-batch 8 x 4 accumulation steps x 2 ranks"


def test_numbers_that_do_not_divide_are_reported_with_the_nearest_that_do() -> None:
    with pytest.raises(ValueError, match="not a multiple of micro_batch_size 24 x world size 2 = 48") as error:
        divide_batch(global_batch_size=64, micro_batch_size=24, world_size=2)
    assert str(error.value).endswith("--global-batch-size 48 or 96, or --micro-batch-size 32")


def test_a_global_batch_smaller_than_the_world_has_one_neighbour() -> None:
    with pytest.raises(ValueError, match=r"--global-batch-size 16$"):
        divide_batch(global_batch_size=5, micro_batch_size=1, world_size=16)


@given(
    samples=st.integers(1, 400),
    micro=st.integers(1, 9),
    accumulation=st.integers(1, 4),
    world_size=st.integers(1, 9),
    epochs=st.integers(1, 3),
)
@settings(deadline=None)
def test_an_epoch_takes_every_sample_once(
    samples: int, micro: int, accumulation: int, world_size: int, epochs: int
) -> None:
    plan = TrainingPlan(samples, divide_batch(micro * accumulation * world_size, micro, world_size), epochs)
    taken: list[tuple[int, int]] = []
    for step in map(plan.step, range(1, plan.total_steps + 1)):
        shares = [plan.micro_batches(step, rank) for rank in range(world_size)]
        assert len({len(share) for share in shares}) == 1, "ranks do not forward equally often"
        for share in shares:
            assert [part.is_last for part in share] == [False] * (len(share) - 1) + [True]
            assert all(1 <= part.stop - part.start <= micro for part in share)
            taken += [
                (step.epoch, position)
                for part in share
                if not part.is_stand_in
                for position in range(part.start, part.stop)
            ]
    assert sorted(taken) == [(epoch, position) for epoch in range(1, epochs + 1) for position in range(samples)]
    assert step.is_last
    assert step.samples_consumed == epochs * samples


def test_any_world_takes_the_same_samples_at_a_step() -> None:
    def of_step(world_size: int) -> list[set[int]]:
        plan = TrainingPlan(50, divide_batch(16, 2, world_size), epochs=1)
        return [
            {
                position
                for rank in range(world_size)
                for part in plan.micro_batches(step, rank)
                for position in range(part.start, part.stop)
            }
            for step in map(plan.step, range(1, plan.total_steps + 1))
        ]

    assert of_step(1) == of_step(2) == of_step(4) == of_step(8)


def test_a_training_may_end_before_its_epochs() -> None:
    plan = TrainingPlan(50, divide_batch(16, 2, 2), epochs=3, max_steps=9)
    assert plan.total_steps == 9
    assert plan.step(9).is_last
    assert not plan.step(9).ends_epoch


@pytest.mark.parametrize(("samples", "last_step"), [(1, 1), (16, 1), (17, 2), (49, 4), (50, 4), (51, 5), (999, 12)])
def test_a_training_may_end_once_it_has_taken_so_many_samples(samples: int, last_step: int) -> None:
    plan = TrainingPlan(50, divide_batch(16, 2, 2), epochs=3, max_samples=samples)
    assert plan.total_steps == last_step
    last = plan.step(last_step)
    assert last.is_last
    assert last.samples_consumed - last.samples < samples
    assert last.samples_consumed >= min(samples, 150)


@given(total=st.integers(0, 1000), parts=st.integers(1, 50))
def test_even_parts_differ_by_at_most_one(total: int, parts: int) -> None:
    bounds = [even_part(total, part, parts) for part in range(parts)]
    sizes = [stop - start for start, stop in bounds]
    assert sum(sizes) == total
    assert max(sizes) - min(sizes) <= 1
    assert all(bounds[part][1] == bounds[part + 1][0] for part in range(parts - 1))


def schedule_of(total_steps: int, **settings: Any) -> Schedule:
    """The schedule of a training whose highest learning rate is 1."""
    folder = Path("unused")
    training = TrainDDP(data=folder, model=folder, checkpoints=folder, metrics=folder, learning_rate=1.0, **settings)
    return Schedule(training, total_steps)


def test_the_learning_rate_rises_then_falls() -> None:
    schedule = schedule_of(100, warmup_fraction=0.1)
    rates = [schedule(step) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == max(rates) == 1.0
    assert rates[55] == pytest.approx(0.5, abs=0.02)
    assert 0 < rates[99] < 0.001
    assert schedule_of(1, warmup_fraction=0.1)(1) == 1.0
    assert schedule_of(4, warmup_fraction=1.0)(4) == 1.0


@pytest.mark.parametrize(
    ("shape", "step_46", "step_96"),
    [("cosine", 0.704, 0.107), ("linear", 0.65, 0.15), ("constant", 1.0, 1.0), ("warmup_stable_decay", 1.0, 0.325)],
)
def test_the_shapes_of_schedules(shape: str, step_46: float, step_96: float) -> None:
    """Of 100 steps, 10 warm up and, in the last of them, 20 decay; a tenth of the highest rate is the least."""
    schedule = schedule_of(
        100,
        warmup_fraction=0.1,
        learning_rate_schedule=shape,
        minimum_learning_rate_fraction=0.1,
        decay_fraction=0.2,
    )
    assert schedule(5) == 0.5
    assert schedule(11) == 1.0
    assert schedule(46) == pytest.approx(step_46, abs=0.001)
    assert schedule(96) == pytest.approx(step_96, abs=0.001)
    assert min(schedule(step) for step in range(11, 101)) >= 0.1


@pytest.mark.parametrize("shape", ["cosine", "warmup_stable_decay"])
def test_lengths_in_steps_are_the_same_as_their_shares(shape: str) -> None:
    by_share = schedule_of(200, warmup_fraction=0.15, decay_fraction=0.3, learning_rate_schedule=shape)
    by_steps = schedule_of(200, warmup_steps=30, decay_steps=60, learning_rate_schedule=shape)
    assert [by_steps(step) for step in range(1, 201)] == [by_share(step) for step in range(1, 201)]
    assert schedule_of(200, warmup_fraction=0.5, warmup_steps=0)(1) == 1.0
