"""Train a model with Horovod.

    python -m trainyard.steps.train_horovod --data data/digits --model out/model --checkpoints out/checkpoints \\
        --metrics out/metrics

One process, or as many as the environment describes: those of Open MPI, which Azure ML starts for a job with
`distribution: type: mpi`, and under any other launcher those with torch's or Slurm's variables.
"""

from __future__ import annotations

from trainyard.settings.steps.training import TrainHorovod
from trainyard.steps.runtime.entrypoint import as_task_step, run_and_end
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.training.stopping import StopRequest

_HOW_TO_INSTALL = "build it with `make setup-horovod`, or with environments/trainyard-horovod/build_horovod.sh"


@as_task_step(TrainHorovod, "trainyard.steps.train_horovod")
def main(given: GivenSettings[TrainHorovod]) -> int:
    """Train with the Horovod engine."""
    stop_request = StopRequest.of(given.step)  # first, since the next imports take seconds, for torch
    from trainyard.steps.runtime.imports import require_packages

    require_packages("train_horovod", _HOW_TO_INSTALL, "horovod.torch")
    from trainyard.steps.training.engines.horovod_engine import HorovodEngine
    from trainyard.steps.training.run_training import run_training

    return run_training(given, "train_horovod", HorovodEngine, stop_request)


if __name__ == "__main__":
    run_and_end(main)
