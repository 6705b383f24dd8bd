"""A table of paths and labels, as CSV or parquet, beside or above the images it lists."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PureWindowsPath

from trainyard.settings.steps.preparation import PrepareImages
from trainyard.steps.data.images.image_folder import PART_OF_NAME, open_files
from trainyard.steps.data.images.image_source import ImageSource
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.imports import from_extra, require_packages

_SPLIT_COLUMN = "split"
_SUFFIXES = (".csv", ".parquet")
_OTHER_SEPARATORS = (";", "\t", "|")
"""What some spreadsheets write."""


def open_source(settings: PrepareImages) -> ImageSource:
    """Return the images that the source folder's only table lists. Raise StepError for a row that cannot be used."""
    folder = settings.source
    assert folder is not None
    table = _find_table(folder)
    rows: dict[str, list[tuple[Path, str]]] = {}
    listed_at: dict[Path, str] = {}
    for place, row in _rows(table, (settings.path_column, settings.label_column)):
        path, label = row[settings.path_column].strip(), row[settings.label_column].strip()
        if not path or not label:
            raise StepError(f"{place}: the {'path' if not path else 'label'} is empty")
        file = folder / path
        if not _stays_within(path):
            where = f"is absolute or leaves {folder}"
            raise StepError(
                f"{place}: {path} {where}: only the source is there when the job runs; put the images into it, "
                "and paths relative to it into the table"
            )
        if not file.is_file():
            raise StepError(f"{place}: there is no file {path} in {folder}; paths are relative to the source")
        if (earlier := listed_at.setdefault(file, place)) != place:
            raise StepError(f"{place}: {path} is already listed at {earlier}")
        rows.setdefault(_part(place, row), []).append((file, label))
    if "train" not in rows:
        raise StepError(f"{table} lists no image for training")
    return open_files(rows, settings)


def _stays_within(path: str) -> bool:
    """Whether a path, of Windows too, is relative and leads out of its folder nowhere."""
    absolute = path.startswith(("/", "\\")) or PureWindowsPath(path).is_absolute()
    return not absolute and os.path.normpath(path).split(os.sep)[0] != ".."


def _find_table(folder: Path) -> Path:
    tables = sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES and file.is_file())
    if len(tables) != 1:
        found = ", ".join(file.name for file in tables) or "none"
        raise StepError(f"{folder}: expected one .csv or .parquet file with paths and labels, found {found}")
    return tables[0]


def _rows(table: Path, required: tuple[str, ...]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each row's place, for messages, and its values by column, as texts."""
    read = _read_csv if table.suffix.lower() == ".csv" else _read_parquet
    columns, rows = read(table)
    if missing := [name for name in required if name not in columns]:
        separators = [separator for separator in _OTHER_SEPARATORS if len(columns) == 1 and separator in columns[0]]
        if separators:
            raise StepError(f"{table} has {separators[0]!r} between its columns; write it with commas")
        raise StepError(
            f"{table} has no column {missing[0]!r}; it has {', '.join(columns) or 'none'}: set --path-column and "
            "--label-column"
        )
    for number, row in rows:
        yield f"{table}:{number}", row


def _read_csv(table: Path) -> tuple[list[str], Iterator[tuple[int, Mapping[str, str]]]]:
    try:
        # utf-8-sig: spreadsheets write a byte order mark.
        reader = csv.DictReader(table.read_text(encoding="utf-8-sig").splitlines(keepends=True), restval="")
    except UnicodeDecodeError as failure:
        raise StepError(f"{table} is not UTF-8: {failure.reason}") from None
    columns = list(reader.fieldnames or ())
    return columns, ((reader.line_num, row) for row in reader)


def _read_parquet(table: Path) -> tuple[list[str], Iterator[tuple[int, Mapping[str, str]]]]:
    require_packages(str(table), from_extra("train"), "pyarrow.parquet")
    import pyarrow
    from pyarrow import parquet

    try:
        content = parquet.read_table(table)
    except pyarrow.ArrowException as failure:
        raise StepError(f"{table} is not a valid parquet file: {failure}") from None
    rows = ({name: "" if value is None else str(value) for name, value in row.items()} for row in content.to_pylist())
    return content.column_names, enumerate(rows, start=1)


def _part(place: str, row: Mapping[str, str]) -> str:
    word = row.get(_SPLIT_COLUMN, "train").strip().lower()
    if word not in PART_OF_NAME:
        raise StepError(f"{place}: unknown split {word!r}; expected one of {', '.join(PART_OF_NAME)}")
    return PART_OF_NAME[word]
