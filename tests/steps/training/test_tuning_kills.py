"""The kill test over fine-tuning, in short: `make soak` kills a hundred times and more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines_to_resume import DDP, FSDP, ResumableEngine
from forked_ranks import RankServer
from killing import kill_until
from tunings_to_resume import LORA, Tuning, new_tuning

from trainyard.steps import prepare_text

pytestmark = pytest.mark.slow

SEED = 9


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    with RankServer(with_adapters=True) as server:
        yield server


@pytest.mark.parametrize(("engine", "tuning"), [(DDP, LORA), (FSDP, LORA)], ids=str)
def test_a_killed_fine_tuning_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, server: RankServer, engine: ResumableEngine, tuning: Tuning
) -> None:
    data = tmp_path / "text"
    assert prepare_text.main(["--prepared", str(data), "--vocabulary-size", "320", "--sequence-length", "32"]) == 0
    kill_until(new_tuning(server, engine, tuning, data, tmp_path), 1, random.Random(SEED), print)
