"""The kill test over fine-tuning, in short: ten kills, where `make soak` kills a hundred times and more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from engines_to_resume import DDP, FSDP, HYBRID, ResumableEngine
from forked_ranks import RankServer
from killing import kill_until
from tunings_to_resume import LORA, MIXED, PREFERENCES, Tuning, new_tuning

from trainyard.steps import prepare_text

pytestmark = pytest.mark.slow

SEED, KILLS = 9, 2


@pytest.mark.parametrize(
    ("engine", "tuning"), [(DDP, LORA), (FSDP, LORA), (HYBRID, LORA), (FSDP, PREFERENCES), (DDP, MIXED)], ids=str
)
def test_a_killed_fine_tuning_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, server: RankServer, engine: ResumableEngine, tuning: Tuning
) -> None:
    data = tmp_path / "text"
    assert prepare_text.main(["--prepared", str(data), "--vocabulary-size", "320", "--sequence-length", "32"]) == 0
    kill_until(new_tuning(server, engine, tuning, data, tmp_path), KILLS, random.Random(SEED), print)
