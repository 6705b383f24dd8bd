"""What a training reports while it runs: metrics.jsonl, MLflow, and lines in the log. Rank 0 only."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.files import os_error_reason
from trainyard.steps.runtime.files import write_json
from trainyard.steps.training.observing.measures import StepMeasures
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.training.samples.plan import AgreedStep
from trainyard.steps.training.used_settings import UsedSettings

Value = TypeVar("Value")

SETTINGS_FILE = "settings.json"
_LINE_EVERY_SECONDS = 1.0
METRICS_FILE = "metrics.jsonl"


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


class MetricsFile:
    """Appends to metrics.jsonl, on rank 0; each line is with the operating system when `write` returns."""

    def __init__(self, folder: Path, steps_done: int) -> None:
        file = folder / METRICS_FILE
        kept = _lines_up_to(file, steps_done)
        self.earlier_lines: list[dict[str, Any]] = [json.loads(line) for line in kept]
        """What is kept from an earlier attempt, as it was written."""
        self._last_line_starts = sum(len(line.encode()) for line in kept[:-1])
        self._has_reported = False
        if kept:
            # Whatever ends this process now, the earlier lines are in one of the two files.
            beside = file.with_name(f"{METRICS_FILE}.new")
            beside.write_text("".join(kept), encoding="utf-8")
            os.replace(beside, file)
        self._stream = file.open("a" if kept else "w", encoding="utf-8")

    def write(self, metrics: Mapping[str, float | int | None]) -> None:
        """Write one line. A number that is not finite becomes null, since JSON cannot express it."""
        finite = {
            name: value if value is not None and math.isfinite(value) else None for name, value in metrics.items()
        }
        try:
            self._stream.write(json.dumps(finite) + "\n")
            self._stream.flush()
        except OSError as failure:
            self._report(failure)

    def take_back_last_line(self) -> dict[str, Any]:
        """Remove and return the newest line kept from an earlier attempt. Only before anything is written."""
        try:
            self._stream.seek(self._last_line_starts)
            self._stream.truncate()
        except OSError as failure:
            self._report(failure)
        return self.last_line

    @property
    def last_line(self) -> dict[str, Any]:
        """The newest line kept from an earlier attempt; empty if there is none."""
        return self.earlier_lines[-1] if self.earlier_lines else {}

    def close(self) -> None:
        """Close the file."""
        try:
            self._stream.close()
        except OSError as failure:
            self._report(failure)

    def _report(self, failure: OSError) -> None:
        """Report a failure once, and continue: a training is worth more than its log."""
        if not self._has_reported:
            print(
                f"warning: cannot write {self._stream.name}, and the training continues without: "
                f"{os_error_reason(failure)}",
                flush=True,
            )
        self._has_reported = True


def set_metrics_aside(folder: Path) -> None:
    """Rename the metrics of a training that is not continued."""
    file = folder / METRICS_FILE
    if file.is_file() and file.stat().st_size:
        names = (folder / f"metrics-set-aside-{number}.jsonl" for number in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        file.rename(aside)
        print(f"--resume never: moved the existing metrics to {aside}", flush=True)


def _lines_up_to(file: Path, steps_done: int) -> list[str]:
    """Return the lines of steps that the resumed training will not repeat. A half-written last line is dropped."""
    if steps_done == 0 or not file.is_file():
        return []
    kept = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            step = json.loads(line)["step"]
        except (ValueError, RecursionError, KeyError, TypeError):
            continue
        if isinstance(step, int) and step <= steps_done:
            kept.append(line + "\n")
    return kept
