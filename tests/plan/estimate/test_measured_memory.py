"""The memory of real trainings on this machine, against what the estimate says of them: within 15 %."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_peak_of_a_small_model_is_predicted() -> None:
    """A language model and an image classifier; `benchmarks/estimated_memory.py` has more."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "estimated_memory.py", "--only", "llama,convnext"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["llama", "convnext"]
