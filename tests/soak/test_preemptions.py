"""Preemptions at random moments of a rehearsed training, start and last save included: the weights stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from rehearsed_training import RehearsedTraining, weights_digest

PREEMPTIONS = 20

pytestmark = pytest.mark.soak


def test_preempted_trainings_end_with_the_bits_of_an_undisturbed_one(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = RehearsedTraining(tmp_path / "project", digits)
    expected = weights_digest(training.run("undisturbed"))

    done = runs = 0
    while done < PREEMPTIONS:
        record = training.run(f"preempted-{runs}", "train@random:2")
        runs += 1
        assert record.status == "completed", record.reason
        done += len(record.jobs["train"].attempts) - 1
        with capsys.disabled():
            print(f"\npreemptions: {done} of {PREEMPTIONS}, {record.name}: {record.notes}", end="", flush=True)
        assert weights_digest(record) == expected, f"{record.folder} has other weights"
