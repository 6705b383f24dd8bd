"""Train a model in one process.

    python -m trainyard.steps.train_single --data data/digits --model out/model --checkpoints out/checkpoints \\
        --metrics out/metrics

Undistributed, so it needs no launcher. Several processes are an error.
"""

from __future__ import annotations

from trainyard.settings.steps.training import TrainSingle
from trainyard.steps.runtime.entrypoint import as_task_step, run_and_end
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.training.stopping import StopRequest


@as_task_step(TrainSingle, "trainyard.steps.train_single")
def main(given: GivenSettings[TrainSingle]) -> int:
    """Train with the single engine."""
    stop_request = StopRequest.of(given.step)  # first, since the next imports take seconds, for torch
    from trainyard.steps.training.engines.replicas import SingleEngine
    from trainyard.steps.training.run_training import run_training

    return run_training(given, "train_single", SingleEngine, stop_request)


if __name__ == "__main__":
    run_and_end(main)
