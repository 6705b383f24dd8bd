"""What the long proofs share: the helpers of tests/steps/helpers, how many kills, and which."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "steps" / "helpers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "security" / "helpers"))

KILLS = int(os.environ.get("KILLS", "20"))


@pytest.fixture(scope="session")
def kills_per_training() -> int:
    """Nine in ten kills go to single trainings, evenly over three engines with two and three ranks each."""
    return max(1, KILLS * 9 // 10 // 6)


@pytest.fixture(scope="session")
def kills_per_tuning() -> int:
    """A tenth of them again go to each of seven kinds of fine-tuning."""
    return max(1, -(-KILLS // 10))


@pytest.fixture(scope="session")
def kills_of_tensorflow() -> int:
    """Half as many again where TensorFlow is installed, whose trainings take longer to start."""
    return max(1, KILLS // 2)


@pytest.fixture(scope="session")
def disturbances_of_runs(kills_per_training: int) -> int:
    """The rest go to whole runs of a pipeline, which take ten times as long."""
    return max(1, KILLS - 6 * kills_per_training)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trainyard.steps import prepare_images

    folder = tmp_path_factory.mktemp("digits")
    assert prepare_images.main(["--prepared", str(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def seed() -> int:
    """SEED repeats what was drawn before."""
    return int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
