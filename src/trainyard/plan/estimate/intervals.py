"""How far published trainings were from their estimates, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trainyard.catalogue.csv_rows import rows_of
from trainyard.plan.estimate.architectures import OTHER_FAMILY, Architecture
from trainyard.plan.estimate.training import TrainingShape

INTERVALS_FILE = Path(__file__).with_suffix(".csv")

KINDS = ("decoders", "adapters", "small micro-batches", "other language models", "images")

SMALL_MICRO_BATCH_TOKENS = 2048
"""With fewer tokens a GPU waits for Python, whose pace differs more from machine to machine than that of GPUs."""


@dataclass(frozen=True)
class Interval:
    """What eight of ten trainings of a kind took, as multiples of what is predicted; None where too few are known.

    `rows` and `memory_rows` say of how many; `unseen_rows` were predicted by these formulas before they were compared.
    docs/estimates.md says where they come from.
    """

    kind: str
    rows: int
    unseen_rows: int
    time_low: float
    time_high: float
    memory_rows: int
    memory_low: float | None
    memory_high: float | None

    def time(self, seconds: float) -> tuple[float | None, float | None]:
        """Return the interval of a time, widened to what is predicted where that lies outside it."""
        low, high = min(self.time_low, 1.0), max(self.time_high, 1.0)
        return (low * seconds, high * seconds) if self.rows else (None, None)

    def memory(self, size: float) -> tuple[int | None, int | None]:
        """Return the interval of a memory, in bytes."""
        if self.memory_low is None or self.memory_high is None:
            return None, None
        return round(self.memory_low * size), round(self.memory_high * size)


def kind_of(training: TrainingShape) -> str:
    """Return one of KINDS, or `samples` for a task of a user's own."""
    model = training.architecture
    if not isinstance(model, Architecture):
        return model.samples
    if model.family == OTHER_FAMILY:
        return "other language models"
    if training.tokens_per_micro_batch < SMALL_MICRO_BATCH_TOKENS:
        return "small micro-batches"
    return "adapters" if training.adapters is not None else "decoders"


def interval_of(training: TrainingShape) -> Interval:
    """Return the interval of a training's kind; one of no rows for a task of a user's own."""
    return _intervals().get(kind_of(training), Interval("", 0, 0, 1.0, 1.0, 0, None, None))


@cache
def _intervals() -> dict[str, Interval]:
    return {interval.kind: interval for interval in rows_of(Interval, INTERVALS_FILE)}
