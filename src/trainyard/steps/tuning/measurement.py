"""What one candidate took, as the trial's file and as its run in MLflow hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainyard.settings.typed_json import read_dataclass
from trainyard.settings.written_settings import Candidate
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import read_json_object, write_json

MEASUREMENT_FILE, CONFIG_FILE = "measurement.json", "deepspeed.json"
_FORMAT = "trainyard.measurement/1"

METRIC = "samples_per_second"
"""What the sweep maximizes; 0 of a candidate that ran out of memory."""


@dataclass(frozen=True)
class Study:
    """What all candidates of a search have in common; `digest` tells searches apart."""

    digest: str
    global_batch_size: int
    world_size: int
    device: str
    device_memory_bytes: int | None = None
    """None for main memory."""


@dataclass(frozen=True)
class MeasuredCandidate:
    """A candidate's speed and the most memory of any rank; of one that ran out of memory, 0 and None."""

    candidate: Candidate
    samples_per_second: float
    step_seconds: float | None = None
    peak_memory_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Whether the candidate had enough memory."""
        return self.samples_per_second > 0

    def metrics(self) -> Mapping[str, float | None]:
        """Return the figures as MLflow gets them."""
        return {name: figure for name, figure in vars(self).items() if name != "candidate"}


def write_measurement(folder: Path, study: Study, measurement: MeasuredCandidate, config: Mapping[str, Any]) -> None:
    """Write a measurement, and DeepSpeed's configuration beside it."""
    write_json(folder / MEASUREMENT_FILE, {"format": _FORMAT, "study": asdict(study), **asdict(measurement)})
    write_json(folder / CONFIG_FILE, config)


def read_measurement(folder: Path) -> tuple[Study, MeasuredCandidate]:
    """Return what a trial wrote. StepError if it is not there or of another format."""
    file = folder / MEASUREMENT_FILE
    if not file.is_file():
        raise StepError(f"{folder}: no {MEASUREMENT_FILE}; expected the output of measure_config")
    document = read_json_object(file, _FORMAT)
    try:
        study = read_dataclass(Study, document.get("study"), "study")
        return study, read_dataclass(MeasuredCandidate, document, "measurement")
    except ValueError as error:
        raise StepError(f"{file}: not a complete measurement: {error}") from None
