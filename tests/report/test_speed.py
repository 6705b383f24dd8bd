"""The figures of a training's speed, each against a hand-made run whose answer is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainyard.report.job_results import read_job_results
from trainyard.report.speed import slowest_rank, speed_figures

LINES = [
    # The first line is the mean of 10 steps, the second of 30, the third of 60.
    {
        "step": 10,
        "step_seconds": 0.4,
        "data_wait_seconds": 0.1,
        "checkpoint_stall_seconds": 0.0,
        "tokens_per_second": 100.0,
        "samples_per_second": 10.0,
        "mfu": 0.1,
        "peak_memory_bytes": 2**30,
        "skipped_steps": 0,
        "loss_spikes": 0,
        "failed_saves": 0,
    },
    {
        "step": 40,
        "step_seconds": 0.2,
        "data_wait_seconds": 0.01,
        "checkpoint_stall_seconds": 1.5,
        "tokens_per_second": 2000.0,
        "samples_per_second": 20.0,
        "mfu": 0.4,
        "peak_memory_bytes": 3 * 2**30,
        "skipped_steps": 2,
        "loss_spikes": 0,
        "failed_saves": 1,
    },
    {
        "step": 100,
        "step_seconds": 0.1,
        "data_wait_seconds": 0.0,
        "checkpoint_stall_seconds": 0.5,
        "tokens_per_second": 3000.0,
        "samples_per_second": 30.0,
        "mfu": 0.5,
        "peak_memory_bytes": 2 * 2**30,
        "skipped_steps": 2,
        "loss_spikes": 0,
        "failed_saves": 1,
        "run_step_seconds_p50": 0.06061,
        "run_step_seconds_p99": 1.25,
    },
]


@pytest.fixture
def figures(empty_run: Any) -> Callable[[list[dict[str, Any]]], dict[str, str]]:
    """Returns the figures of metrics.jsonl with these lines."""

    def read(lines: list[dict[str, Any]]) -> dict[str, str]:
        file: Path = empty_run.write("metrics/metrics.jsonl", lines)
        metrics = read_job_results({"metrics": file.parent}).metrics
        assert metrics is not None
        return {figure.label: figure.value for figure in speed_figures(metrics)}

    return read


def test_every_figure_of_a_run_with_known_answers(figures: Callable[..., dict[str, str]]) -> None:
    assert figures(LINES) == {
        "tokens per second": "2,000",  # the median line
        "MFU": "40.0 %",
        "median step": "61 ms",
        "99th percentile": "1.2 s",
        "waited for data": "8.1 %",  # (10 * 0.1 + 30 * 0.01) s of (10 * 0.4 + 30 * 0.2 + 60 * 0.1) s
        "waited for checkpoints": "2.0 s",
        "peak memory of a rank": "3.0 GiB",
        "steps skipped": "2",
        "checkpoints not saved": "1",
    }


def test_counts_that_begin_again_with_each_attempt_add_up(figures: Callable[..., dict[str, str]]) -> None:
    """Spikes: 3 in the first attempt, 2 in the second; skipped steps are counted over the whole training."""
    counted = [(1, 0), (3, 2), (0, 2), (2, 4)]
    lines = [{"step": step, "loss_spikes": a, "skipped_steps": b} for step, (a, b) in enumerate(counted, start=1)]
    assert figures(lines) == {"steps skipped": "4", "loss spikes": "5"}


def windows_of(ranks: Sequence[float], *, noise: float, windows: int = 40, seed: int = 0) -> list[list[float]]:
    """Seconds of ranks with these true speeds, where every rank varies in every window."""
    chance = random.Random(seed)
    return [[mean * chance.uniform(1 - noise, 1 + noise) for mean in ranks] for _ in range(windows)]


def test_the_slowest_rank_is_that_of_the_whole_run(figures: Callable[..., dict[str, str]]) -> None:
    """Extremes of each window would add up to far more than the 4.5 % that rank 2 is slower."""
    windows = windows_of((1.0, 1.0, 1.045, 1.0), noise=0.2, windows=2000)
    extremes = sum(max(window) for window in windows) / sum(min(window) for window in windows) - 1
    assert extremes > 0.25
    rank, excess = slowest_rank(windows) or (None, 0.0)
    assert (rank, excess) == (2, pytest.approx(0.045, abs=0.01))

    lines = [
        {"step": step, **{f"rank_{rank}_seconds": seconds for rank, seconds in enumerate((0.1, 0.1, 0.104))}}
        for step in range(1, 8)
    ]
    assert figures(lines) == {"slowest rank": "2, takes 4.0 % longer than the others"}


@pytest.mark.parametrize("seed", range(20))
def test_ranks_that_differ_by_chance_are_not_mentioned(seed: int) -> None:
    assert slowest_rank(windows_of((1.0,) * 8, noise=0.2, seed=seed)) is None


def test_too_small_or_too_few_differences_are_not_mentioned() -> None:
    assert slowest_rank(windows_of((1.0, 1.009), noise=0.0)) is None
    assert slowest_rank(windows_of((1.0, 1.5), noise=0.0, windows=4)) is None
    assert slowest_rank(windows_of((1.0, 1.5), noise=0.0, windows=5)) == (1, pytest.approx(0.5))
    assert slowest_rank(windows_of((1.0,), noise=0.1)) is None
    assert slowest_rank([]) is None


def test_the_first_line_is_warming_up(figures: Callable[..., dict[str, str]]) -> None:
    lines = [{"step": 1, "rank_0_seconds": 9.0, "rank_1_seconds": 1.0}]
    lines += [{"step": step, "rank_0_seconds": 1.0, "rank_1_seconds": 1.0} for step in range(2, 10)]

    assert "slowest rank" not in figures(lines)
