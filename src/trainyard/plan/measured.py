"""What an earlier run of the same training measured, read from its metrics.jsonl."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError
from trainyard.settings.files import read_regular

METRICS_FILE = "metrics.jsonl"
_LARGEST_METRICS_BYTES = 1 << 30


@dataclass(frozen=True)
class Measured:
    """Figures of a run; None is what it did not log. `replaces` says whether they stand in for the estimate's.

    `source` names the run. Steps count from the start of the training.
    """

    source: str
    steps: int
    step_seconds: float | None
    tokens_per_second: float | None
    peak_memory_bytes: float | None
    processes: int | None
    replaces: bool


def read_measured(file: Path, source: str, *, processes: int | None, replaces: bool) -> Measured:
    """Return what a metrics.jsonl says. UsageError for a file that is not one, or that has no step."""
    try:
        texts = read_regular(file, _LARGEST_METRICS_BYTES).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not a metrics.jsonl: not text") from None
    lines = [_line(text, f"{file}:{number}") for number, text in enumerate(texts, start=1)]
    steps = [line["step"] for line in lines if isinstance(line.get("step"), int)]
    if not steps:
        raise UsageError(f"{file}: no steps in this metrics.jsonl")
    return Measured(
        source=source,
        steps=max(steps),
        step_seconds=_last(lines, "run_step_seconds_p50") or _median(lines, "step_seconds_p50"),
        tokens_per_second=_median(lines, "tokens_per_second"),
        peak_memory_bytes=_last(lines, "peak_memory_bytes"),
        processes=processes,
        replaces=replaces,
    )


def _line(text: str, place: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{place}: not a line of metrics.jsonl: {error}") from None
    if not isinstance(line, dict):
        raise UsageError(f"{place}: not a line of metrics.jsonl: expected an object")
    return line


def _numbers(lines: list[dict[str, Any]], name: str) -> list[float]:
    return [float(line[name]) for line in lines if isinstance(line.get(name), (int, float))]


def _last(lines: list[dict[str, Any]], name: str) -> float | None:
    return next(reversed(_numbers(lines, name)), None)


def _median(lines: list[dict[str, Any]], name: str) -> float | None:
    values = sorted(_numbers(lines, name))
    return values[len(values) // 2] if values else None
