"""What a job logged with MLflow, read from the local file store: parameters, metrics and images of any job.

The format is that of mlflow.store.tracking.file_store: a file per parameter, a file per metric with a line `time value
step` for each value, and artifacts as files. Names with a slash are in folders.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.report.job_results import Metrics, Point
from trainyard.settings.files import is_file_within

_IMAGE_TYPES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".gif": "gif", ".webp": "webp", ".svg": "svg+xml"}
_MOST_IMAGES = 12
_LARGEST_IMAGE_BYTES = 2 << 20


@dataclass(frozen=True)
class Image:
    """An image artifact: its name, and its content as an address that a page can show without a network."""

    name: str
    address: str


@dataclass(frozen=True)
class Tracked:
    """What one run of MLflow holds; `more_images` are too many or too large for the page."""

    parameters: dict[str, str]
    metrics: Metrics
    images: tuple[Image, ...]
    more_images: int


def read_tracked(folder: Path) -> Tracked:
    """Return what the MLflow run in a folder holds; values that cannot be read are left out."""
    artifacts = folder / "artifacts"
    files = [file for _, file in _files(artifacts) if file.suffix.lower() in _IMAGE_TYPES]
    shown = [file for file in files if file.stat().st_size <= _LARGEST_IMAGE_BYTES][:_MOST_IMAGES]
    return Tracked(
        parameters={name: file.read_text("utf-8", errors="replace") for name, file in _files(folder / "params")},
        metrics=Metrics({name: points for name, file in _files(folder / "metrics") if (points := _points(file))}),
        images=tuple(Image(file.relative_to(artifacts).as_posix(), _address(file)) for file in shown),
        more_images=len(files) - len(shown),
    )


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*")):
        if is_file_within(file, folder):
            yield file.relative_to(folder).as_posix(), file


def _points(file: Path) -> tuple[Point, ...]:
    """Return the values by step; of two for the same step, as after a restart, the later."""
    found: dict[float, float] = {}
    for line in file.read_text("utf-8", errors="replace").splitlines():
        try:
            _, value, step, *_ = line.split(" ")
            found[float(step)] = float(value)
        except ValueError:
            continue
    return tuple((step, found[step]) for step in sorted(found) if math.isfinite(step))


def _address(file: Path) -> str:
    content = base64.b64encode(file.read_bytes()).decode("ascii")
    return f"data:image/{_IMAGE_TYPES[file.suffix.lower()]};base64,{content}"
