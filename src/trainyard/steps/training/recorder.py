"""What a training says of itself while it runs: metrics.jsonl, MLflow, and lines in the log. Rank 0 only."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from trainyard.steps.json_files import write_json
from trainyard.steps.training.agreement import Agreement
from trainyard.steps.training.metrics import MetricsFile
from trainyard.steps.training.mlflow_log import MlflowLog
from trainyard.steps.training.plan import Step
from trainyard.steps.training.world import World

SETTINGS_FILE = "settings.json"
_LINE_EVERY_SECONDS = 1.0


class Recorder:
    """Measures steps and records every `log_every_steps`-th one, and those with a validation."""

    def __init__(self, world: World, folder: Path, settings: Mapping[str, object], log_every_steps: int) -> None:
        self._is_main = world.is_main
        self._folder, self._settings = folder, settings
        self._log_every_steps = log_every_steps
        self._file: MetricsFile | None = None
        self._mlflow: MlflowLog | None = None
        self._seconds, self._samples, self._steps = 0.0, 0, 0
        self._mark = self._last_line = 0.0

    def begin(self, steps_done: int, parameters: Mapping[str, object]) -> None:
        """Open the records, going on after `steps_done` steps."""
        if self._is_main:
            self._mlflow = MlflowLog()
            self._mlflow.parameters(parameters)
            self._file = MetricsFile(self._folder, steps_done)
            write_json(self._folder / SETTINGS_FILE, self._settings)
        self.resume_clock()

    def resume_clock(self) -> None:
        """Count time as a step's from here on; what went before (evaluation, a checkpoint) is not a step's."""
        self._mark = time.perf_counter()

    def step_done(self, step: Step) -> None:
        """Count the time since the clock was resumed as this step's."""
        self._seconds += time.perf_counter() - self._mark
        self._samples += step.samples
        self._steps += 1

    def record(
        self,
        step: Step,
        agreed: Agreement,
        *,
        total_steps: int,
        learning_rate: float,
        gradient_norm: float,
        skipped_steps: int,
        validation: Mapping[str, float],
    ) -> None:
        """Record the step if it is one to be recorded. Times are means over the steps since the last record."""
        if not (validation or step.is_last or step.number % self._log_every_steps == 0):
            return
        metrics: dict[str, float | int] = {
            "step": step.number,
            "epoch": step.epoch,
            "loss": agreed.loss,
            "samples_consumed": step.samples_consumed,
            "learning_rate": learning_rate,
            "grad_norm": gradient_norm,
            "step_seconds": self._seconds / self._steps,
            "samples_per_second": self._samples / self._seconds,
            "skipped_steps": skipped_steps,
            **{f"validation_{name}": value for name, value in validation.items()},
        }
        self._seconds, self._samples, self._steps = 0.0, 0, 0
        if self._file is not None and self._mlflow is not None:
            self._file.write(metrics)
            self._mlflow.metrics(metrics, step.number)
            self._print(metrics, total_steps, always=bool(validation) or step.is_last)

    def close(self, *, failed: bool = False) -> None:
        """Close the records, and wait for MLflow a while."""
        if self._file is not None and self._mlflow is not None:
            self._file.close()
            self._mlflow.close(failed=failed)

    def _print(self, metrics: Mapping[str, float | int], total_steps: int, *, always: bool) -> None:
        now = time.monotonic()
        if not always and now - self._last_line < _LINE_EVERY_SECONDS:
            return
        self._last_line = now
        line = (
            f"step {metrics['step']}/{total_steps}  epoch {metrics['epoch']}  loss {metrics['loss']:.4f}  "
            f"{metrics['samples_per_second']:.0f} samples/s"
        )
        validation = [f"{name.replace('_', ' ')} {metrics[name]:.4f}" for name in metrics if "validation_" in name]
        print("  ".join([line, *validation]), flush=True)
