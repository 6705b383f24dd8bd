"""Train a model with Lightning.

    python -m trainyard.steps.train_lightning --data data/digits --model out/model --checkpoints out/checkpoints \\
        --metrics out/metrics --module my_package.my_module:MyLightningModule

One process, or as many as the environment describes; Lightning takes its ranks from there, on several nodes too.
"""

from __future__ import annotations

from trainyard.settings.steps.training import TrainLightning
from trainyard.steps.runtime.entrypoint import as_task_step, run_and_end
from trainyard.steps.runtime.flags import GivenSettings
from trainyard.steps.training.stopping import StopRequest


@as_task_step(TrainLightning, "trainyard.steps.train_lightning")
def main(given: GivenSettings[TrainLightning]) -> int:
    """Train with Lightning's Trainer."""
    stop_request = StopRequest.of(given.step)  # first, since the next imports take seconds, for torch
    from trainyard.steps.runtime.imports import from_extra, require_packages

    require_packages("train_lightning", from_extra("lightning"), "lightning.pytorch")
    from trainyard.steps.training.lightning.lightning_training import run_lightning

    return run_lightning(given, stop_request)


if __name__ == "__main__":
    run_and_end(main)
