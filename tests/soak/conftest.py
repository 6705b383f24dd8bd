"""What the long proofs share: the helpers of tests/steps, how many kills, and which."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "steps"))

KILLS = int(os.environ.get("KILLS", "20"))


@pytest.fixture(scope="session")
def kills_per_engine() -> int:
    """Nine in ten kills go to single trainings, evenly over three engines."""
    return max(1, KILLS * 9 // 10 // 3)


@pytest.fixture(scope="session")
def disturbances_of_runs(kills_per_engine: int) -> int:
    """The rest go to whole runs of a pipeline, which take ten times as long."""
    return max(1, KILLS - 3 * kills_per_engine)


@pytest.fixture(scope="session")
def seed() -> int:
    """SEED repeats what was drawn before."""
    return int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
