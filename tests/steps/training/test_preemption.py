"""A training that is preempted on purpose ends with the bits of one that is not; twenty times in `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest
from rehearsed_training import RehearsedTraining, weights_digest


@pytest.mark.slow
def test_a_preempted_training_ends_with_the_bits_of_an_undisturbed_one(
    digits: Path, tmp_path: Path, forked_python: Path
) -> None:
    training = RehearsedTraining(tmp_path / "project", digits, python=forked_python)

    undisturbed = training.run("undisturbed")
    preempted = training.run("preempted", "train@step:12")

    assert (undisturbed.status, preempted.status) == ("completed", "completed")
    first, second = preempted.jobs["train"].attempts
    assert first.exit_codes == {"0": 75, "1": 75}, "every rank committed a checkpoint and stopped"
    assert second.repeated_steps == 0
    log = (preempted.folder / preempted.jobs["train"].logs[0]).read_text()
    assert "scheduled events" not in log, "the stand-in for Azure's metadata service answered"
    assert weights_digest(preempted) == weights_digest(undisturbed)
