"""What a training reports while it runs: metrics.jsonl, MLflow, and lines in the log. Rank 0 only."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.steps.runtime.files import write_json
from trainyard.steps.training.agreed_step import AgreedStep
from trainyard.steps.training.observing.measures import StepMeasures
from trainyard.steps.training.observing.metrics_file import MetricsFile, set_metrics_aside
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.training.used_settings import UsedSettings

Value = TypeVar("Value")

SETTINGS_FILE = "settings.json"
_LINE_EVERY_SECONDS = 1.0


class RecordedRanks(Protocol):
    """The ranks whose training is recorded."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which records."""

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value on every rank."""

    def peak_memory_bytes(self) -> int:
        """Return the most memory that this rank has taken."""


def settings_record(
    step: str, used: UsedSettings, batch: BatchArithmetic, parameters: int, versions: Mapping[str, str]
) -> dict[str, object]:
    """Return the content of settings.json: all settings, of which paths become text, and the origin of each."""
    settings = used.values()
    return {
        "format": "trainyard.settings/1",
        "step": step,
        "settings": {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()},
        "origins": used.origins(),
        **dataclasses.asdict(batch),
        "model_parameters": parameters,
        "versions": versions,
    }


class Recorder:
    """Records every `log_every_steps`-th step, and those with a validation."""

    def __init__(self, world: RecordedRanks, folder: Path, log_every_steps: int, total_steps: int) -> None:
        self._world, self._folder = world, folder
        self._log_every_steps, self._total_steps = log_every_steps, total_steps
        self._file: MetricsFile | None = None
        self._mlflow: MlflowLog | None = None
        self._last_line = 0.0
        self._is_complete = False
        self.last_validation: Mapping[str, float] = {}
        """The figures of the last validation, on every rank."""

    def begin(
        self,
        steps_done: int,
        settings: Mapping[str, object],
        parameters: Mapping[str, object],
        *,
        starts_over: bool = False,
    ) -> None:
        """Open the records, continuing after `steps_done` steps. `settings` go to a file, `parameters` to MLflow.

        With `starts_over` an earlier training's metrics are kept beside the new ones. Figures that an earlier attempt
        wrote, but no longer came to log, are logged to MLflow now.
        """
        if self._world.is_main:
            self._mlflow = MlflowLog()
            self._mlflow.parameters(parameters)
            if starts_over:
                set_metrics_aside(self._folder)
            self._file = MetricsFile(self._folder, steps_done)
            for line in self._file.earlier_lines:
                self._mlflow.metrics(_figures(line), line["step"])
            write_json(self._folder / SETTINGS_FILE, settings)
            self._mlflow.artifact(self._folder / SETTINGS_FILE)

    def record(
        self,
        agreed: AgreedStep,
        measures: StepMeasures,
        counts: Mapping[str, int],
        validation: Mapping[str, float],
        *,
        always: bool = False,
    ) -> None:
        """Record the step if it is one to record. Times are over the steps since the last record."""
        step = agreed.step
        if not (always or validation or step.is_last or step.number % self._log_every_steps == 0):
            return
        self.last_validation = validation or self.last_validation
        self._write(
            {
                "step": step.number,
                "epoch": step.epoch,
                "loss": agreed.loss,
                "samples_consumed": step.samples_consumed,
                "learning_rate": agreed.learning_rate,
                "grad_norm": agreed.gradient_norm,
                **measures.window(),
                "peak_memory_bytes": self._world.peak_memory_bytes(),
                **counts,
                **_named(validation),
                **(measures.whole() if step.is_last else {}),
            },
            print_always=bool(validation) or step.is_last,
        )

    def add_validation(self, step_number: int, validation: Mapping[str, float]) -> None:
        """Add the validation that the last line of an earlier attempt lacks, if that is the step's."""
        self.last_validation = validation
        if self._file is not None and self._file.last_line.get("step") == step_number:
            self._write({**self._file.take_back_last_line(), **_named(validation)}, print_always=True)

    def complete(self) -> None:
        """Note that the training is complete: if closed before, its run in MLflow counts as failed."""
        self._is_complete = True

    def close(self) -> None:
        """Close the records, and wait for MLflow a while."""
        if self._file is not None:
            self._file.close()
        if self._mlflow is not None:
            self._mlflow.close(failed=not self._is_complete)

    def _write(self, metrics: dict[str, Any], *, print_always: bool) -> None:
        if self._file is not None and self._mlflow is not None:
            self._file.write(metrics)
            self._mlflow.metrics(_figures(metrics), metrics["step"])
            self._print(metrics, always=print_always)

    def _print(self, metrics: Mapping[str, Any], *, always: bool) -> None:
        now = time.monotonic()
        if not always and now - self._last_line < _LINE_EVERY_SECONDS:
            return
        self._last_line = now
        loss = metrics["loss"]
        rate, unit = metrics["samples_per_second"], "samples/s"
        if "tokens_per_second" in metrics:
            rate, unit = metrics["tokens_per_second"], "tokens/s"
        parts = [
            f"step {metrics['step']}/{self._total_steps}  epoch {metrics['epoch']}  "
            f"loss {'not finite' if loss is None else f'{loss:.4f}'}  {rate:.0f} {unit}",
            *([f"MFU {metrics['mfu']:.1%}"] if "mfu" in metrics else []),
            *(f"{name.replace('_', ' ')} {metrics[name]:.4f}" for name in metrics if "validation_" in name),
        ]
        print("  ".join(parts), flush=True)


def _figures(line: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Return the numbers of a line; in one that was read, those that were not finite are None."""
    return {name: value for name, value in line.items() if value is None or isinstance(value, int | float)}


def _named(validation: Mapping[str, float]) -> dict[str, float]:
    return {f"validation_{name}": value for name, value in validation.items()}
