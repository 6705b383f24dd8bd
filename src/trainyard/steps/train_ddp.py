"""Train a model with DistributedDataParallel.

    python -m trainyard.steps.train_ddp --data data/digits --model out/model --checkpoints out/checkpoints \\
        --metrics out/metrics

One process, or as many as the environment says (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), as Azure ML
sets it for a job with `distribution: type: pytorch`.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.foundation.configs.training import TrainDDP
from trainyard.steps.runtime.entrypoint import end_process, run_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step; gives its exit code."""
    return run_step(TrainDDP, "trainyard.steps.train_ddp", train_ddp, arguments)


def train_ddp(settings: TrainDDP) -> int:
    """Train with the DDP engine."""
    from trainyard.steps.training.stopping import StopRequest

    # First, since what comes next imports torch, for seconds.
    stop_request = StopRequest.of(settings)
    from trainyard.steps.training.engines.ddp import DDPEngine
    from trainyard.steps.training.run import run_training

    return run_training(settings, "train_ddp", DDPEngine, stop_request)


if __name__ == "__main__":
    end_process(main())
