"""The kill test, in short: `make soak KILLS=200` is the long one.

A random rank is hit by SIGKILL or SIGTERM at a random moment, inside a save included, and the training started again,
until it ends. Its last checkpoint (weights, optimizer, every rank's random state) must have the bits of an undisturbed
training. With three ranks it also matters in which order numbers are added.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from engines_to_resume import DDP, FSDP, ZERO_2, ResumableEngine
from forked_ranks import RankServer
from killing import Training, kill_until

pytestmark = pytest.mark.slow

SEED = 20


@pytest.mark.parametrize(
    ("engine", "kills", "ranks"), [(DDP, 4, 2), (FSDP, 2, 2), (FSDP, 1, 3), (ZERO_2, 2, 2), (ZERO_2, 1, 3)], ids=str
)
def test_a_killed_training_ends_with_the_bits_of_an_uninterrupted_one(
    digits: Path, tmp_path: Path, server: RankServer, engine: ResumableEngine, kills: int, ranks: int
) -> None:
    def new_training(name: str) -> Training:
        return Training(server, engine.step, digits, tmp_path / name, engine.flags(tmp_path), ranks)

    kill_until(new_training, kills, random.Random(SEED), print)


def test_a_killed_training_does_not_use_a_damaged_checkpoint(digits: Path, tmp_path: Path, server: RankServer) -> None:
    def new_training(name: str) -> Training:
        return Training(server, FSDP.step, digits, tmp_path / name, FSDP.flags(tmp_path), 2)

    kill_until(new_training, 2, random.Random(SEED), print, damages=True)
