"""Train a model with DistributedDataParallel.

    python -m trainyard.steps.train_ddp --data data/digits --model out/model --checkpoints out/checkpoints \\
        --metrics out/metrics

One process, or as many as the environment describes: with torch's variables, which Azure ML sets for a job with
`distribution: type: pytorch` and torchrun on its own, with Open MPI's (`type: mpi`), or with Slurm's.
"""

from __future__ import annotations

from trainyard.settings.steps.training import TrainDDP
from trainyard.steps.runtime.entrypoint import as_task_step, run_and_end
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.training.stopping import StopRequest


@as_task_step(TrainDDP, "trainyard.steps.train_ddp")
def main(given: GivenSettings[TrainDDP]) -> int:
    """Train with the DDP engine."""
    stop_request = StopRequest.of(given.step)  # first, since the next imports take seconds, for torch
    from trainyard.steps.training.engines.replicas import DDPEngine
    from trainyard.steps.training.run_training import run_training

    return run_training(given, "train_ddp", DDPEngine, stop_request)


if __name__ == "__main__":
    run_and_end(main)
