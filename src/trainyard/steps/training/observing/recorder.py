"""What a training writes while it runs: on rank 0 metrics.jsonl, MLflow and lines in the log; on every rank, if asked
for, which samples it took."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.settings.batch_arithmetic import BatchArithmetic
from trainyard.settings.files import os_error_reason
from trainyard.steps.runtime.files import write_json
from trainyard.steps.training.observing.measures import StepGuards, StepMeasures
from trainyard.steps.training.observing.mlflow_log import MlflowLog
from trainyard.steps.training.samples.plan import AgreedStep, Step
from trainyard.steps.training.used_settings import UsedSettings

if TYPE_CHECKING:
    from trainyard.steps.runtime.world import World
    from trainyard.steps.training.samples.batches import MicroBatch
    from trainyard.steps.training.tensorflow.cluster import Tasks
    from trainyard.steps.training.tensorflow.keras_samples import KerasBatch

SETTINGS_FILE = "settings.json"
_LINE_EVERY_SECONDS = 1.0
METRICS_FILE = "metrics.jsonl"
_FILE_OF_RANK = re.compile(r"rank-(\d{5,})\.jsonl")


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
        **batch._asdict(),
        "model_parameters": parameters,
        "versions": versions,
    }


class Recorder:
    """Records every `log_every_steps`-th step, and those with a validation."""

    def __init__(self, world: World | Tasks, folder: Path, log_every_steps: int, total_steps: int) -> None:
        self._world, self._folder = world, folder
        self._log_every_steps, self._total_steps = log_every_steps, total_steps
        self._file: StepLines | None = None
        self._line_before: Mapping[str, Any] = {}
        """The last one that an earlier attempt wrote."""
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
                _set_metrics_aside(self._folder)
            file = self._folder / METRICS_FILE
            for text in lines_up_to(file, steps_done):
                self._line_before = json.loads(text)
                self._mlflow.metrics(self._line_before, self._line_before["step"])
            self._file = StepLines(file, steps_done)
            write_json(self._folder / SETTINGS_FILE, settings)
            self._mlflow.artifact(self._folder / SETTINGS_FILE)

    def record(
        self,
        agreed: AgreedStep,
        measures: StepMeasures,
        guards: StepGuards,
        validation: Mapping[str, float],
        *,
        failed_saves: int,
        always: bool = False,
        more_figures: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Record the step if it is one to record, with more figures then. Times are over the steps since the last
        record."""
        step = agreed.step
        if not (always or validation or step.is_last or step.number % self._log_every_steps == 0):
            return
        self.last_validation = validation or self.last_validation
        figures = measures.window()
        if "peak_memory_bytes" not in figures:
            figures["peak_memory_bytes"] = self._world.peak_memory_bytes()
        self._write(
            {
                "step": step.number,
                "epoch": step.epoch,
                "loss": agreed.loss,
                "samples_consumed": step.samples_consumed,
                "learning_rate": agreed.learning_rate,
                "grad_norm": agreed.gradient_norm,
                **figures,
                **more_figures(),
                "skipped_steps": guards.skipped_steps,
                "loss_spikes": guards.loss_spikes,
                "failed_saves": failed_saves,
                **_named(validation),
                **(measures.whole() if step.is_last else {}),
            },
            print_always=bool(validation) or step.is_last,
        )

    def add_validation(self, step_number: int, validation: Mapping[str, float]) -> None:
        """Add the validation that the last line of an earlier attempt lacks, if that is the step's."""
        self.last_validation = validation
        if self._file is not None and self._line_before.get("step") == step_number:
            self._file.remove_last_line()
            self._write({**self._line_before, **_named(validation)}, print_always=True)

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
            # A number that is not finite becomes null, since JSON cannot express it.
            finite = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
            self._file.write(dict.fromkeys(metrics) | finite)
            self._mlflow.metrics(metrics, metrics["step"])
            self._print(metrics, always=print_always)

    def _print(self, metrics: Mapping[str, Any], *, always: bool) -> None:
        now = time.monotonic()
        if not always and now - self._last_line < _LINE_EVERY_SECONDS:
            return
        self._last_line = now
        loss = metrics["loss"]
        things = "tokens" if "tokens_per_second" in metrics else "samples"
        parts = [
            f"step {metrics['step']}/{self._total_steps}  epoch {metrics['epoch']}  "
            f"loss {'not finite' if loss is None else f'{loss:.4f}'}  {metrics[f'{things}_per_second']:.0f} {things}/s",
            *([f"MFU {metrics['mfu']:.1%}"] if "mfu" in metrics else []),
            *(f"{name.replace('_', ' ')} {metrics[name]:.4f}" for name in metrics if "validation_" in name),
        ]
        print("  ".join(parts), flush=True)


def _named(validation: Mapping[str, float]) -> dict[str, float]:
    return {f"validation_{name}": value for name, value in validation.items()}


class SampleRecord:
    """Which samples a rank took at each step, for debugging data: one file per rank.

    A line of rank-00000.jsonl is `{"step": 7, "epoch": 1, "sample_ids": [31, 4, …]}`, in the order in which the rank
    took them. Over all files each step appears once per rank, and each epoch has every sample once, also after a resume
    at another world size. The numbers of several datasets go on from one to the next.
    """

    def __init__(self, folder: Path, rank: int, world_size: int, steps_done: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            name = _FILE_OF_RANK.fullmatch(file.name)
            # Files of ranks that only a larger world had are truncated by those that exist now.
            if name and int(name[1]) % world_size == rank:
                StepLines(file, steps_done).close()
        self._lines = StepLines(folder / f"rank-{rank:05d}.jsonl", steps_done)
        self.close = self._lines.close

    def write(self, step: Step, micro_batches: Sequence[MicroBatch | KerasBatch]) -> None:
        """Record a step's samples, but no stand-ins, which only keep a rank without samples in step."""
        batches = [batch for batch in micro_batches if not batch.is_stand_in]
        sample_ids = [number for batch in batches for number in batch.sample_ids.tolist()]
        self._lines.write({"step": step.number, "epoch": step.epoch, "sample_ids": sample_ids})


class StepLines:
    """A file with a line of JSON for each step, which a resumed training continues after the step it resumes from."""

    def __init__(self, file: Path, steps_done: int) -> None:
        kept = [len(line) for line in lines_up_to(file, steps_done)]
        self._file, self._size_before_last_line = file, sum(kept[:-1])
        self._rest = b""
        """Of a line that could only be written in part."""
        self._has_warned = False
        if kept:
            os.truncate(file, sum(kept))
        self._stream = file.open("ab" if kept else "wb", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        """Write one line; it is with the operating system when this returns.

        If that fails, the line is left out and the log says so once: a training is worth more than its records.
        """
        try:
            self._write_rest()
            self._rest = json.dumps(line).encode() + b"\n"
            self._write_rest()
        except OSError as failure:
            if not self._has_warned:
                reason = os_error_reason(failure)
                print(f"warning: cannot write {self._file}, and the training continues without: {reason}", flush=True)
            self._has_warned = True

    def _write_rest(self) -> None:
        while self._rest:
            self._rest = self._rest[self._stream.write(self._rest) :]

    def remove_last_line(self) -> None:
        """Remove the last line of an earlier attempt. Only before anything is written."""
        os.truncate(self._file, self._size_before_last_line)

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._stream.close()


def lines_up_to(file: Path, steps_done: int) -> Iterator[bytes]:
    """Yield the lines of steps that a resumed training does not repeat, up to a half-written one."""
    if steps_done == 0 or not file.is_file():
        return
    with file.open("rb") as lines:
        for line in lines:
            if _step_of(line) > steps_done:
                return
            yield line


def _step_of(line: bytes) -> float:
    try:
        step: int = json.loads(line)["step"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return math.inf
    return step if line.endswith(b"\n") else math.inf


def _set_metrics_aside(folder: Path) -> None:
    """Rename the metrics of a training that is not continued."""
    file = folder / METRICS_FILE
    if file.is_file() and file.stat().st_size:
        names = (folder / f"metrics-set-aside-{number}.jsonl" for number in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        file.rename(aside)
        print(f"--resume never: moved the existing metrics to {aside}", flush=True)
