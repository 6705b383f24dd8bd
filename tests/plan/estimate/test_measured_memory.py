"""The memory of real trainings on this machine, against what the estimate says of them: within 15 %."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "estimated_memory.py"


@pytest.mark.slow
def test_the_peak_of_a_small_model_is_predicted() -> None:
    """A language model and an image classifier; `benchmarks/estimated_memory.py` has more, and larger batches."""
    done = subprocess.run(
        [sys.executable, BENCHMARK, "--only", "llama,convnext", "--divide-batches", "4"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["llama", "convnext"]
