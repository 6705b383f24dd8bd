"""Train a model with DeepSpeed: ZeRO 0 to 3, as set in its configuration file.

    python -m trainyard.steps.train_deepspeed --data data/text --model out/model --checkpoints out/checkpoints \\
        --metrics out/metrics --deepspeed-config components/zero2.json

One process, or as many as the environment describes: with torch's variables, which Azure ML sets for a job with
`distribution: type: pytorch` and torchrun on its own, with Open MPI's (`type: mpi`), or with Slurm's.
"""

from __future__ import annotations

import os

from trainyard.settings.steps.training import TrainDeepSpeed
from trainyard.steps.runtime.entrypoint import as_task_step, run_and_end
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.runtime.rank_variables import read_rank_variables
from trainyard.steps.training.engines.deepspeed_config import with_configured_settings
from trainyard.steps.training.stopping import StopRequest


@as_task_step(TrainDeepSpeed, "trainyard.steps.train_deepspeed")
def main(given: GivenSettings[TrainDeepSpeed]) -> int:
    """Train with the DeepSpeed engine, and with the settings that its configuration gives."""
    stop_request = StopRequest.of(given.step)  # first, since the next imports take seconds, for torch
    given = with_configured_settings(given, read_rank_variables(os.environ).world_size)
    from trainyard.steps.training.engines.deepspeed_engine import DeepSpeedEngine
    from trainyard.steps.training.run_training import run_training

    return run_training(given, "train_deepspeed", DeepSpeedEngine, stop_request)


if __name__ == "__main__":
    run_and_end(main)
