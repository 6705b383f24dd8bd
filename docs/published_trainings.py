"""Published trainings with their sources, and what the estimate says of each."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainyard.catalogue.gpus import find_gpu
from trainyard.plan.estimate import STACK_YEAR
from trainyard.plan.estimate.architectures import Architecture, find_architecture
from trainyard.plan.estimate.compute import Efficiency, efficiency_curves
from trainyard.plan.estimate.config_file import architecture_of, image_model_of
from trainyard.plan.estimate.estimator import estimate
from trainyard.plan.estimate.image_models import IMAGE_FAMILIES, IMAGE_SIZE, ImageModel, Images
from trainyard.plan.estimate.intervals import kind_of
from trainyard.plan.estimate.memory import memory_of
from trainyard.plan.estimate.step_time import samples_per_second_per_gpu, step_time_of
from trainyard.plan.estimate.training import Adapters, TrainingShape, machines_of_gpu

_CSV_FILE = Path(__file__).with_suffix(".csv")
MEASURED, OWN_ROUND = "../benchmarks/results/measured_trainings.json", 7
"""Of Trainyard's own loop, by benchmarks/measured_trainings.py."""
_KERNELS_LOADED_AT_ONCE, _LOADS_KERNELS_AS_NEEDED = 1343 * 2**20 - 0.35e9, 2023
"""What CUDA's context takes beyond the estimate's 0.35 GB before releases of torch with CUDA 11.7, which loads kernels
as they are needed: 1,343 MiB on V100 (https://huggingface.co/docs/transformers/v4.20.1/en/perf_train_gpu_one)."""
_HELD_OUT_FILE = _CSV_FILE.with_name("held_out_trainings.csv")


@dataclass(frozen=True)
class Published:
    """One training that somebody published; its rate or `memory_bytes` is None where they do not say.

    `is_fitted` marks the rows that the efficiency curves are fitted to; the others are predicted unseen. `is_held_out`
    marks those that were found, and compared once, when the model was finished but for what docs/estimates.md says.
    """

    source: str
    training: TrainingShape
    tokens_per_second_per_gpu: float | None
    memory_bytes: float | None
    is_fitted: bool
    is_held_out: bool
    note: str

    @property
    def predicted_memory_bytes(self) -> float:
        """What the estimate says of the memory of a GPU."""
        return memory_of(self.training).total

    @property
    def memory_error(self) -> float | None:
        """How far the prediction of memory is off, as a share of what was published."""
        return None if self.memory_bytes is None else self.predicted_memory_bytes / self.memory_bytes - 1

    @property
    def kind(self) -> str:
        """The kind of training whose errors are gathered."""
        return kind_of(self.training)

    def predicted_rate(self, curve: Efficiency | None = None) -> float:
        """Return the tokens a second and GPU that the estimate says, with this efficiency curve or the GPU's own."""
        used = curve or efficiency_curves()[self.training.machines.gpu.generation]
        seconds = step_time_of(self.training, used).total
        return samples_per_second_per_gpu(self.training, seconds) * self.training.sequence_length

    def time_error(self, curve: Efficiency | None = None) -> float:
        """Return how far the predicted time of a step is off, as a share of the published, which must be known."""
        assert self.tokens_per_second_per_gpu is not None
        return self.tokens_per_second_per_gpu / self.predicted_rate(curve) - 1


@dataclass(frozen=True)
class HeldOut:
    """One training that was predicted before it was entered.

    No share of peak is fitted to such rows but that of a T4 in fp32 (six rows of round 10), and attention's on Hopper
    and Blackwell. A source may state the rate, the memory, or both. Rates are samples a second and GPU: rows of text,
    or images.
    `first_rate` and `first_memory_bytes` are what the estimate said when the row was entered, in one of several rounds;
    they stay as they are when the estimate changes. `memory_counts` says what a source's memory is of: tensors
    ("allocated"), what the allocator takes ("reserved"), all of a GPU's where it is full ("device"), or "unknown"; in
    rounds 1 and 2 tensors were predicted.
    """

    source: str
    training: TrainingShape
    rate: float | None
    memory_bytes: float | None
    first_rate: float | None
    first_memory_bytes: float
    memory_counts: str
    round: int
    note: str

    @property
    def kind(self) -> str:
        """The kind of training whose errors are gathered."""
        return kind_of(self.training)

    def time_error(self, *, first: bool) -> float:
        """Return how far the time of a step was off when the row was entered, or is today; the rate must be known."""
        predicted = self.first_rate if first else estimate(self.training).samples_per_second_per_gpu
        assert predicted is not None
        assert self.rate is not None
        return self.rate / predicted - 1

    def memory_error(self, *, first: bool) -> float | None:
        """Return how far the memory was off when the row was entered, or is today; None where it is not published."""
        if self.memory_bytes is None:
            return None
        predicted = self.first_memory_bytes if first else _memory(self.training, self.memory_counts)
        return predicted / self.memory_bytes - 1


FIXED_TIME_ROUND, FIXED_MEMORY_ROUND = 12, 10
"""From which rounds on rows were predicted by the formulas of today, of time and of memory; those before had been seen.
"""

LAST_TIME_ROUND, LAST_MEMORY_ROUND = 11, 11
"""The last rounds that were predicted before their values were entered, of time and of memory: the page leads with
them. One before the round of FIXED_TIME_ROUND or FIXED_MEMORY_ROUND was predicted by formulas that changed since."""

UNSEEN_ROUND, UNSEEN_MEMORY_ROUND = 3, 6
"""From which rounds on first predictions count as unseen errors, of time and of memory, though formulas may have
changed after them: where that changed much, the first prediction is the more cautious figure."""


@cache
def held_out_trainings() -> tuple[HeldOut, ...]:
    """Return the trainings that were predicted before they were entered."""
    with _HELD_OUT_FILE.open(encoding="utf-8", newline="") as file:
        return tuple(map(_held_out, csv.DictReader(file)))


def _held_out(row: dict[str, str]) -> HeldOut:
    return HeldOut(
        row["source"],
        _training(row),
        float(row["samples_per_second_per_gpu"]) if row["samples_per_second_per_gpu"] else None,
        float(row["memory_gb"]) * 1e9 if row["memory_gb"] else None,
        float(row["first_samples_per_second_per_gpu"]) if row["first_samples_per_second_per_gpu"] else None,
        float(row["first_memory_gb"]) * 1e9,
        row["memory_counts"],
        int(row["round"]),
        row["note"],
    )


def _memory(training: TrainingShape, counts: str) -> float:
    """Return what the estimate says of memory, counted as a source counts it: where that is not known, as reserved.

    Of a device, that and what CUDA and NCCL take, as far as it has room: the allocator gives back what it keeps.
    """
    found, runtime = memory_of(training), training.machines.runtime_bytes
    if counts == "device":
        runtime += _KERNELS_LOADED_AT_ONCE if training.stack_year < _LOADS_KERNELS_AS_NEEDED else 0
        return max(found.total, min(found.reserved, training.machines.memory_bytes_per_gpu - runtime)) + runtime
    return found.total if counts == "allocated" else found.reserved


@cache
def _model(text: str) -> Architecture | ImageModel:
    """Return a model of the table, or one that is written as its config.json."""
    if not text.startswith("{"):
        return find_architecture(text)
    settings = json.loads(text)
    if settings["model_type"] in IMAGE_FAMILIES or "image_size" in settings:
        side = settings.get("image_size", IMAGE_SIZE)
        return image_model_of(settings["model_type"], settings, Images(side, side))
    return architecture_of(settings["model_type"], settings, settings["model_type"])


@cache
def published_trainings() -> tuple[Published, ...]:
    """Return all rows of the table, in its order."""
    with _CSV_FILE.open(encoding="utf-8", newline="") as file:
        return tuple(_published(row) for row in csv.DictReader(file))


def _training(row: dict[str, str]) -> TrainingShape:
    return TrainingShape(
        architecture=_model(row["model"]),
        machines=machines_of_gpu(
            find_gpu(row["gpu"]),
            int(row["nodes"]),
            int(row["gpus_per_node"]),
            float(row.get("network_gbit") or 0) or None,
        ),
        engine=row["engine"],
        micro_batch_size=int(row["micro_batch_size"]),
        accumulation_steps=int(row["accumulation_steps"]),
        sequence_length=int(row["sequence_length"]),
        precision=row["precision"],
        activation_checkpointing=row["activation_checkpointing"],
        compiled=row["compile"] == "yes",
        loss_chunk_tokens=int(row.get("loss_chunk_tokens") or 0),
        stack=row["stack"] or "sdpa",
        stack_year=int(row["stack_year"] or STACK_YEAR),
        optimizer=row.get("optimizer") or "adamw",
        channels_last=row.get("layout") == "nhwc",
        is_fsdp1=row.get("fsdp1") == "yes",
        upcasts_logits=row.get("loss") != "16-bit",
        is_deterministic=row["source"] == MEASURED,
        copies_gradients=row["source"] != MEASURED,
        adapters=_adapters(row),
    )


def _published(row: dict[str, str]) -> Published:
    training = _training(row)
    memory = float(row["memory_gb"]) * 1e9 if row["memory_gb"] else None
    rate = float(row["tokens_per_second_per_gpu"]) if row["tokens_per_second_per_gpu"] else None
    return Published(row["source"], training, rate, memory, row["fit"] == "yes", row["fit"] == "held out", row["note"])


def _adapters(row: dict[str, str]) -> Adapters | None:
    if not row["tuning"]:
        return None
    is_quantized, drops_out = row["tuning"] == "qlora", row.get("dropout") == "yes"
    return Adapters(int(row["lora_rank"]), row["lora_targets"], is_quantized, drops_out)


def timed_trainings() -> list[Published]:
    """Return the rows that say how fast it was."""
    return [row for row in published_trainings() if row.tokens_per_second_per_gpu is not None]


def rows_of(generation: str) -> list[Published]:
    """Return the timed rows on GPUs of a generation."""
    return [row for row in timed_trainings() if row.training.machines.gpu.generation == generation]


def median_time_error(rows: Iterable[Published]) -> float:
    """Return the median of how far the time of a step is off, whatever the direction."""
    return statistics.median(abs(row.time_error()) for row in rows)
