"""The kill test with TensorFlow: `make setup-tensorflow`, then `make soak KILLS=20` has ten of these kills.

Workers of MultiWorkerMirroredStrategy are hit by SIGKILL or SIGTERM at random moments, and the training started again,
until it ends: with the same variables of model and optimizer, seeds of dropout included.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked_ranks import forked_ranks
from killing import Training, kill_until
from rank_processes import LIMIT_SECONDS
from tensorflow_tasks import needs_tensorflow, start_tasks

pytestmark = [pytest.mark.soak, needs_tensorflow]


@dataclass
class TensorFlowTraining(Training):
    """The tasks of TF_CONFIG, each a process of its own from the start."""

    def attempt(
        self, disturb: Callable[[list[int]], None] | None = None, patience_seconds: float = LIMIT_SECONDS
    ) -> list[int]:
        tasks = start_tasks(self.data, self.out, *self.flags, workers=self.world_size)
        if disturb is not None:
            disturb([process.pid for process in tasks.processes])
        try:
            exit_codes = tasks.wait(patience_seconds)
        except subprocess.TimeoutExpired:  # by now all are killed
            exit_codes = [process.returncode for process in tasks.processes]
        with self.log.open("a") as log:
            log.writelines([*tasks.outputs, f"exit codes: {exit_codes}\n"])
        return exit_codes


def test_killed_workers_end_with_the_bits_of_undisturbed_ones(
    digits: Path, tmp_path: Path, kills_of_tensorflow: int, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ("--keras-model=keras_models:with_dropout", "--epochs=8", "--checkpoint-every-steps=10")
    # A worker that was killed before it met the others is waited for no longer.
    flags = (*model, "--process-group-timeout-seconds=60")

    def new_training(name: str) -> Training:
        return TensorFlowTraining(forked_ranks(), "train_tensorflow", digits, tmp_path / name, flags)

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\ntensorflow, 2 workers: {line}", end="", flush=True)

    say(f"SEED={seed}")
    kill_until(new_training, kills_of_tensorflow, random.Random(f"{seed} tensorflow"), say)
