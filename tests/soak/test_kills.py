"""The kill test at length: `make soak KILLS=200`. In pieces: KILLS=200 pytest -m soak -k fsdp tests/soak/test_kills.py

A random rank is hit by SIGKILL or SIGTERM at a random moment, inside a save included, and the training started again,
until it ends. Its last checkpoint (weights, optimizer, every rank's random state) must have the bits of an undisturbed
training, every time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines_to_resume import DDP, FSDP, ZERO_2, ResumableEngine
from forked_ranks import RankServer
from killing import Training, kill_until

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def server() -> Iterator[RankServer]:
    with RankServer(with_deepspeed=True) as server:
        yield server


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from trainyard.steps import prepare_images

    folder = tmp_path_factory.mktemp("digits")
    assert prepare_images.main(["--prepared", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("engine", [DDP, FSDP, ZERO_2], ids=str)
def test_killed_trainings_end_with_the_bits_of_an_undisturbed_one(
    digits: Path,
    tmp_path: Path,
    server: RankServer,
    engine: ResumableEngine,
    kills_per_engine: int,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def new_training(name: str) -> Training:
        return Training(server, engine.step, digits, tmp_path / name, engine.flags(tmp_path))

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n{engine}: {line}", end="", flush=True)

    say(f"SEED={seed}")
    kill_until(new_training, kills_per_engine, random.Random(f"{seed} {engine}"), say)
