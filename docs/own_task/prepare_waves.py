"""A step of your own: write the dataset that the task of forecasting.py trains on.

python -m waves.prepare_waves --prepared data/waves --noise 0.1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from waves.forecasting import write_waves

from trainyard.settings.step_fields import output_folder, parameter
from trainyard.steps.runtime.entrypoint import end_process, run_step


@dataclass(frozen=True)
class PrepareWaves:
    """Write waves with noise as a dataset."""

    prepared: Path = output_folder()
    """Where the dataset is written."""

    noise: float = parameter(0.05, minimum=0.0)
    """The standard deviation of the noise."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the step and return its exit code."""
    return run_step(PrepareWaves, "waves.prepare_waves", prepare, arguments)


def prepare(settings: PrepareWaves) -> int:
    """Write the dataset; the exit code 0 means success."""
    write_waves(settings.prepared, settings.noise)
    return 0


if __name__ == "__main__":
    end_process(main())
