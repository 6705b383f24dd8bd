"""A complete task of your own: forecast the next value of a series from the values before it.

    python docs/own_task/forecasting.py data/waves
    export PYTHONPATH=docs/own_task
    python -m trainyard.steps.train_ddp --data data/waves --task forecasting:Forecasting --hidden-size 96 \
        --learning-rate 0.01 --model out/model --checkpoints out/checkpoints --metrics out/metrics
    python -m trainyard.steps.evaluate --data data/waves --model out/model --evaluation out/evaluation
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from trainyard.tasks import ArrayType, DatasetWriter, Task, TaskSettings, Tensors, parameter

WINDOW = 32
SERIES = {"train": 4000, "validation": 500, "test": 500}


@dataclass(frozen=True, kw_only=True)
class ForecastingSettings(TaskSettings):
    """Each field becomes a flag of the train steps, and a key of their settings files."""

    hidden_size: int = parameter(64, minimum=1)
    """How many units the network has between its input and its output."""

    absolute_error_weight: float = parameter(0.0, minimum=0.0, on_resume="numbers")
    """How much the absolute error counts beside the squared one."""


class Forecasting(Task):
    """Trains on the squared error; the absolute error is what people want to know."""

    Settings = ForecastingSettings
    settings: ForecastingSettings

    def new_model(self) -> torch.nn.Module:
        """A small network from the values before to the next one, sized by the dataset and the settings."""
        (window,) = self.manifest.arrays["before"].shape
        hidden = self.settings.hidden_size
        return torch.nn.Sequential(torch.nn.Linear(window, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 1))

    def loss(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        """The sum of the samples' errors: a sum, so that micro-batches and ranks add up to an exact mean."""
        errors = self._errors(model, batch)
        return (errors.square() + self.settings.absolute_error_weight * errors.abs()).sum()

    def measure(self, model: torch.nn.Module, batch: Tensors) -> dict[str, torch.Tensor]:
        """Every `x_sum` becomes the figure `x`, its mean over the samples of the split."""
        errors = self._errors(model, batch).double()
        return {
            "loss_sum": errors.square().sum(),
            "absolute_error_sum": errors.abs().sum(),
            "samples": torch.tensor(float(len(errors)), dtype=torch.float64, device=errors.device),
        }

    def _errors(self, model: torch.nn.Module, batch: Tensors) -> torch.Tensor:
        errors: torch.Tensor = model(batch["before"]).squeeze(1) - batch["next"]
        return errors


def write_waves(folder: Path, noise: float = 0.05) -> None:
    """Write a dataset of waves with noise: for each sample WINDOW values, and the one that comes next."""
    random = np.random.default_rng(0)
    arrays = {"before": ArrayType("float32", (WINDOW,)), "next": ArrayType("float32", ())}
    with DatasetWriter(folder, arrays, shard_samples=10_000) as dataset:
        for name, samples in SERIES.items():
            phase, pace = random.uniform(0, 6.28, (samples, 1)), random.uniform(0.1, 1.0, (samples, 1))
            values = np.sin(phase + pace * np.arange(WINDOW + 1)) + random.normal(0, noise, (samples, WINDOW + 1))
            with dataset.split(name) as split:
                split.add({"before": values[:, :-1], "next": values[:, -1]})
        dataset.finish("series", classes=(), source={"waves": WINDOW})


if __name__ == "__main__":
    write_waves(Path(sys.argv[1]))
