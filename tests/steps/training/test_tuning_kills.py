"""The kill test over fine-tuning, in short: eight kills, where `make soak` kills a hundred times and more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from engines_to_resume import DDP, FSDP, HYBRID, ResumableEngine
from forked_ranks import RankServer
from killing import kill_until
from tunings_to_resume import LORA, MIXED, PREFERENCES, Tuning, new_tuning

pytestmark = pytest.mark.slow

SEED, KILLS = 9, 2


@pytest.mark.parametrize(
    ("engine", "tuning"), [(DDP, LORA), (HYBRID, LORA), (FSDP, PREFERENCES), (DDP, MIXED)], ids=str
)
def test_a_killed_fine_tuning_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, text: Path, server: RankServer, engine: ResumableEngine, tuning: Tuning
) -> None:
    """Preferences are learnt with LoRA too."""
    kill_until(new_tuning(server, engine, tuning, text, tmp_path), KILLS, random.Random(SEED), print)
