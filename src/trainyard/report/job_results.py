"""Reads what a job left in its outputs (metrics, settings, evaluation, confusion matrix, dataset) and with MLflow.

Any component may write any file, so a file of another format is ignored, and an invalid one becomes a note in the
report: nothing that a job wrote makes the report fail.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from trainyard.settings.files import is_file_within, read_regular
from trainyard.settings.quantities import EVALUATION_COUNTS, EVALUATION_FORMAT, as_text, counted
from trainyard.settings.run_record import JobRecord
from trainyard.settings.typed_json import read_dataclass

Parsed = TypeVar("Parsed")

# Beyond this, the range of an axis would overflow.
_TOO_LARGE_TO_DRAW = 1e300

_MOST_WRONG_SAMPLES, _LARGEST_PICTURE_BYTES = 24, 1 << 16

_LARGEST_BYTES = 1 << 30

_IMAGE_TYPES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".gif": "gif", ".webp": "webp", ".svg": "svg+xml"}
_MOST_IMAGES = 12
_LARGEST_IMAGE_BYTES = 2 << 20
_LARGEST_TABLE_BYTES, _MOST_ROWS = 16 << 20, 50

Point = tuple[float, float]
"""A step and a value, which may be NaN or infinite."""


class Metrics(NamedTuple):
    """The logged values of a training, by name of the series."""

    series: dict[str, tuple[Point, ...]]


@dataclass(frozen=True)
class TrainingSettings:
    """The settings that a training ran with."""

    settings: dict[str, Any]
    world_size: int
    micro_batch_size: int
    accumulation_steps: int
    global_batch_size: int
    step: str = ""
    model_parameters: int | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassFigures:
    """How well one class was recognized; a share is None if its denominator was 0."""

    name: str
    support: int
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None


@dataclass(frozen=True)
class GeneratedText:
    """A sample of a language model's text; `text` begins with the prompt."""

    prompt: str
    text: str

    @property
    def continuation(self) -> str:
        """The text after the prompt."""
        return self.text.removeprefix(self.prompt)


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluating a model on one split, with the figures that its task measures, such as `accuracy`."""

    split: str
    samples: int
    figures: dict[str, float] = field(default_factory=dict)
    classes: tuple[ClassFigures, ...] = ()
    tokens: int | None = None
    generated: GeneratedText | None = None
    before: dict[str, float] = field(default_factory=dict)
    """Figures of the model that training started from, or of one that has learned nothing, as `compared_with` says."""
    compared_with: str = ""


class ConfusionMatrix(NamedTuple):
    """Counts of samples by true class (rows) and predicted class (columns)."""

    classes: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class WrongSample:
    """A wrongly classified sample: the address of its picture in the page, its classes, and how sure the model was."""

    sample: int
    address: str
    true: str
    predicted: str
    probability: float


class WrongSamples(NamedTuple):
    """The wrong samples that the model was most sure of, of all `found` among the first `searched` of the split."""

    shown: tuple[WrongSample, ...]
    found: int
    searched: int


class Dataset(NamedTuple):
    """A prepared dataset: samples by split; the classes of images; the length of samples and the vocabulary of text."""

    samples: dict[str, int]
    classes: tuple[str, ...]
    tokens_per_sample: int | None = None
    vocabulary_size: int | None = None


class JobResults(NamedTuple):
    """The results in one job's outputs, and notes on files that could not be read."""

    metrics: Metrics | None = None
    settings: TrainingSettings | None = None
    evaluation: Evaluation | None = None
    confusion_matrix: ConfusionMatrix | None = None
    dataset: Dataset | None = None
    wrong_samples: WrongSamples | None = None
    speeds: tuple[float, ...] | None = None
    """Samples a second of the candidates that were compared and fit into memory, in ascending order."""
    notes: tuple[str, ...] = ()


def read_job_results(output_folders: Mapping[str, Path]) -> JobResults:
    """Return the results in a job's outputs, given as folders by port."""
    folders = [folder for folder in output_folders.values() if folder.is_dir()]
    notes: list[str] = []

    def read(name: str, known_format: str, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed | None:
        return _document(folders, name, known_format, parse, notes)

    return JobResults(
        metrics=_metrics(folders, notes),
        settings=read("settings.json", "trainyard.settings/1", _settings),
        evaluation=read("evaluation.json", EVALUATION_FORMAT, _evaluation),
        confusion_matrix=read("confusion_matrix.json", "trainyard.confusion_matrix/1", _confusion_matrix),
        dataset=read("manifest.json", "trainyard.dataset/1", _dataset),
        speeds=read("autotune.json", "trainyard.autotune/1", _speeds),
        wrong_samples=next(filter(None, (_wrong_samples(folder, notes) for folder in folders)), None),
        notes=tuple(notes),
    )


def _document(
    folders: list[Path], name: str, known_format: str, parse: Callable[[dict[str, Any]], Parsed], notes: list[str]
) -> Parsed | None:
    """Return the first file of this name and format, parsed; None if there is none, with a note if it is invalid."""
    for folder in folders:
        file = folder / name
        if not is_file_within(file, folder):
            continue
        try:
            document = json.loads(read_regular(file, _LARGEST_BYTES))
        except (OSError, ValueError, RecursionError):
            notes.append(f"{name} could not be read: it is not valid JSON.")
            continue
        found = document.get("format") if isinstance(document, dict) else None
        family = known_format.rpartition("/")[0]
        if found != known_format:
            if isinstance(found, str) and found.startswith(family + "/"):
                notes.append(f"{name} is ignored: its format is {found}; this version reads {known_format}.")
            continue
        try:
            return parse(document)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError):
            notes.append(f"{name} is ignored: it is not a valid {known_format}.")
    return None


def _settings(document: dict[str, Any]) -> TrainingSettings:
    return read_dataclass(TrainingSettings, document, "settings")


def _speeds(document: dict[str, Any]) -> tuple[float, ...]:
    return tuple(sorted(speed for each in document["trials"] if (speed := float(each["samples_per_second"])) > 0))


def _evaluation(document: dict[str, Any]) -> Evaluation:
    before: dict[str, Any] = document.get("before") or {}
    others = {"figures": None, "before": None, "generated": document.get("sample")}
    found = read_dataclass(Evaluation, {**document, **others}, "evaluation")
    compared_with = str(before.get("model", ""))
    return replace(found, figures=_evaluated(document), before=_evaluated(before), compared_with=compared_with)


def _evaluated(document: dict[str, Any]) -> dict[str, float]:
    numbers = {name: _number(value) for name, value in document.items() if name not in EVALUATION_COUNTS}
    return {name: value for name, value in numbers.items() if value is not None}


def _confusion_matrix(document: dict[str, Any]) -> ConfusionMatrix:
    classes = tuple(map(str, document["classes"]))
    matrix = tuple(tuple(int(cell) for cell in row) for row in document["matrix"])
    if not classes or len(matrix) != len(classes) or any(len(row) != len(classes) for row in matrix):
        raise ValueError("the matrix is not square in its classes")
    return ConfusionMatrix(classes, matrix)


def _wrong_samples(folder: Path, notes: list[str]) -> WrongSamples | None:
    """Return the wrongly classified samples that an evaluation shows, as far as their pictures lie in its folder."""

    def parse(document: dict[str, Any]) -> WrongSamples:
        rows = [(row, folder / row["file"]) for row in document["samples"][:_MOST_WRONG_SAMPLES]]
        shown = [
            read_dataclass(WrongSample, {**row, "address": _picture_address(file)}, "sample")
            for row, file in rows
            if file.suffix.lower() in _IMAGE_TYPES and is_file_within(file, folder)
            if file.stat().st_size <= _LARGEST_PICTURE_BYTES
        ]
        return WrongSamples(tuple(shown), int(document["found"]), int(document["searched"]))

    return _document([folder], "mistakes.json", "trainyard.mistakes/1", parse, notes)


def _picture_address(file: Path) -> str:
    """Return a picture as an address that a page can show without a network."""
    content = base64.b64encode(file.read_bytes()).decode("ascii")
    return f"data:image/{_IMAGE_TYPES[file.suffix.lower()]};base64,{content}"


def _dataset(document: dict[str, Any]) -> Dataset:
    text = document.get("text")
    return Dataset(
        samples={name: int(split["samples"]) for name, split in document["splits"].items()},
        classes=tuple(map(str, document.get("classes") or ())),
        # A sample has one token more than the model predicts, because the first one is only read.
        tokens_per_sample=int(document["arrays"]["tokens"]["shape"][0]) - 1 if text else None,
        vocabulary_size=int(text["vocabulary_size"]) if text else None,
    )


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON's integers are unbounded
        return math.inf


def _metrics(folders: list[Path], notes: list[str]) -> Metrics | None:
    files = [folder / "metrics.jsonl" for folder in folders]
    found, broken = read_metrics([file for file in files if is_file_within(file, file.parent)])
    if broken:
        notes.append(f"{counted(len(broken), 'line')} of metrics.jsonl could not be read; the curves lack these steps.")
    return found if found.series else None


def read_metrics(files: Iterable[Path]) -> tuple[Metrics, list[int]]:
    """Return the complete lines of metrics.jsonl, and the numbers of others that are not a file's last.

    Of two lines with the same step, as after a restart, the later counts.
    """
    rows: dict[float, dict[str, Any]] = {}
    broken: list[int] = []
    for file in files:
        lines = read_regular(file, _LARGEST_BYTES).decode("utf-8", errors="replace").splitlines()
        for line_number, line in enumerate(lines, start=1):
            row = _logged_step(line)
            if row is not None:
                rows[row["step"]] = row
            elif line.strip() and line_number < len(lines):
                broken.append(line_number)
    series: dict[str, list[Point]] = {}
    for step in sorted(rows):
        for name, value in rows[step].items():
            number = _number(value)
            if number is not None:
                series.setdefault(name, []).append((step, math.inf if abs(number) >= _TOO_LARGE_TO_DRAW else number))
    return Metrics({name: tuple(points) for name, points in series.items()}), broken


def _logged_step(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
        step = _number(row["step"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return row if step is not None and abs(step) < _TOO_LARGE_TO_DRAW else None


class Image(NamedTuple):
    """An image artifact."""

    name: str
    file: Path

    @property
    def address(self) -> str:
        """Its content as an address that a page can show without a network."""
        return _picture_address(self.file)


class LoggedTable(NamedTuple):
    """A table artifact of `mlflow.log_table`: its name, its columns, and its first rows of so many."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    total: int


@dataclass(frozen=True)
class Tracked:
    """What one run of MLflow holds, without its own tags; `more_images` are too many or too large for the page."""

    parameters: dict[str, str] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=lambda: Metrics({}))
    tags: dict[str, str] = field(default_factory=dict)
    images: tuple[Image, ...] = ()
    more_images: int = 0
    table_files: tuple[tuple[str, Path], ...] = ()

    @property
    def tables(self) -> list[LoggedTable]:
        """Its tables, as far as they can be read: JSON with `columns` and `data`."""
        found = []
        for name, file in self.table_files:
            with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
                document = json.loads(read_regular(file, _LARGEST_TABLE_BYTES))
                rows, columns = document["data"], tuple(map(str, document["columns"]))
                found.append(LoggedTable(name, columns, tuple(tuple(row) for row in rows[:_MOST_ROWS]), len(rows)))
        return found


def logged_by(job: JobRecord, run_folder: Path, results: JobResults | None = None) -> Tracked:
    """Return what a job logged with MLflow, the metrics in the outputs of ours, and those of a sweep's best trial.

    `results` are those in its outputs, where they have been read.
    """
    folder = job.tracked_folder(run_folder)
    tracked = read_tracked(folder) if folder is not None else Tracked()
    parameters, series = dict(tracked.parameters), dict(tracked.metrics.series)
    results = results or read_job_results(job.output_folders(run_folder))
    if results.metrics:
        series |= results.metrics.series
    if results.evaluation:
        split = results.evaluation.split
        series |= {f"{split}_{name}": ((0.0, value),) for name, value in results.evaluation.figures.items()}
    for best in (trial for trial in job.trials if trial.is_best and trial.metric is not None):
        parameters |= {name: as_text(value) for name, value in best.inputs.items()}
        series[best.metric_name] = ((0.0, float(best.metric or 0)),)
    return replace(tracked, parameters=parameters, metrics=Metrics(series))


def read_tracked(folder: Path) -> Tracked:
    """Return what the MLflow run in a folder holds; values that cannot be read are left out.

    The format is that of mlflow.store.tracking.file_store: a file per parameter, a file per metric with a line `time
    value step` for each value, and artifacts as files. Names with a slash are in folders.
    """
    artifacts = dict(_files(folder / "artifacts"))
    pictures = {name: file for name, file in artifacts.items() if file.suffix.lower() in _IMAGE_TYPES}
    small = [name for name, file in pictures.items() if file.stat().st_size <= _LARGEST_IMAGE_BYTES]
    shown = small[:_MOST_IMAGES]
    tags = _texts(folder / "tags")
    listed_as_tables = re.findall(r'"path": "([^"]+\.json)", "type": "table"', tags.get("mlflow.loggedArtifacts", ""))
    return Tracked(
        parameters=_texts(folder / "params"),
        metrics=Metrics({name: points for name, file in _files(folder / "metrics") if (points := _points(file))}),
        tags={name: text for name, text in tags.items() if not name.startswith("mlflow.")},
        images=tuple(Image(name, pictures[name]) for name in shown),
        more_images=len(pictures) - len(shown),
        table_files=tuple((name, file) for name, file in artifacts.items() if name in listed_as_tables),
    )


def _texts(folder: Path) -> dict[str, str]:
    return {name: file.read_text("utf-8", errors="replace") for name, file in _files(folder)}


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
