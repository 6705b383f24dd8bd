"""The kill test at length: `make soak KILLS=200`. In pieces: KILLS=200 pytest -m soak -k fsdp tests/soak/test_kills.py

A random rank is hit by SIGKILL or SIGTERM at a random moment, inside a save included, and the training started again,
until it ends. Its last checkpoint (weights, optimizer, every rank's random state) must have the bits of an undisturbed
training, every time. With three ranks it also matters in which order numbers are added.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from engines_to_resume import DDP, FSDP, HOROVOD, HYBRID, LIGHTNING, ZERO_2, ZERO_3, ResumableEngine
from forked_ranks import RankServer, forked_ranks
from horovod_installed import needs_horovod
from killing import LightningTraining, Training, kill_until
from tunings_to_resume import FULL, LORA, MIXED, PREFERENCES, Tuning, new_tuning

from trainyard.steps import prepare_text

pytestmark = pytest.mark.soak


@pytest.fixture
def server() -> RankServer:
    return forked_ranks()


@pytest.mark.parametrize(
    ("engine", "ranks", "damages"),
    # Lightning's DDP chooses its buckets again after each start, which decides how three ranks' numbers are added.
    [
        *((engine, ranks, False) for engine in (DDP, FSDP, ZERO_2) for ranks in (2, 3)),
        *(pytest.param(HOROVOD, ranks, False, marks=needs_horovod) for ranks in (2, 3)),
        (LIGHTNING, 2, False),
        (HYBRID, 4, False),
        *((engine, 2, True) for engine in (DDP, ZERO_2, ZERO_3, LIGHTNING)),
        (FSDP, 3, True),
        (HYBRID, 4, True),
    ],
    ids=str,
)
def test_killed_trainings_end_with_the_bits_of_an_undisturbed_one(
    digits: Path,
    tmp_path: Path,
    server: RankServer,
    engine: ResumableEngine,
    ranks: int,
    damages: bool,
    kills_per_training: int,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With `damages`, a byte of every second checkpoint to resume from is wrong, which shows once it is restored."""
    name_of_case = f"{engine}, {ranks} ranks{', damaged' if damages else ''}"

    def new_training(name: str) -> Training:
        training = LightningTraining if engine is LIGHTNING else Training
        return training(server, engine.step, digits, tmp_path / name, engine.flags(tmp_path), ranks)

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n{name_of_case}: {line}", end="", flush=True)

    say(f"SEED={seed}")
    kill_until(new_training, kills_per_training, random.Random(f"{seed} {name_of_case}"), say, damages=damages)


@pytest.mark.parametrize(
    ("engine", "tuning"),
    [(DDP, LORA), (FSDP, LORA), (HYBRID, LORA), (FSDP, FULL), (FSDP, PREFERENCES), (FSDP, MIXED), (DDP, MIXED)],
    ids=str,
)
def test_killed_fine_tunings_end_with_the_bits_of_an_undisturbed_one(
    tmp_path: Path,
    server: RankServer,
    engine: ResumableEngine,
    tuning: Tuning,
    kills_per_tuning: int,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "text"
    assert prepare_text.main(["--prepared", str(data), "--vocabulary-size", "320", "--sequence-length", "32"]) == 0

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n{engine}, {tuning}: {line}", end="", flush=True)

    say(f"SEED={seed}")
    training = new_tuning(server, engine, tuning, data, tmp_path)
    kill_until(training, kills_per_tuning, random.Random(f"{seed} {engine} {tuning}"), say)
