"""Runs a parallel job: divides its input into mini-batches and calls the entry script's `init()` and `run()` for each.

Started by its path, in the Python of the job's environment: it imports the standard library alone, and pandas when it
reads a table. https://learn.microsoft.com/azure/machine-learning/how-to-use-parallel-job-in-pipeline
"""

from __future__ import annotations

import argparse
import glob
import importlib.util
import inspect
import json
import math
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DEFAULT_FILES = 10
_DEFAULT_BYTES = 1 << 20
# How the service writes a table of results: https://learn.microsoft.com/azure/machine-learning/tutorial-pipeline-batch-scoring
_SEPARATOR = " "


@dataclass(frozen=True)
class MiniBatch:
    """What one call of `run` gets: the names of files, or a part of a table."""

    data: Any
    partition_key_value: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.data)


@dataclass
class MiniBatchContext:
    """The second argument of `run`, where the entry script takes one."""

    minibatch_index: int
    mini_batch_index: int
    partition_key_value: dict[str, Any] | None
    dataset_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Worker:
    """A process that runs mini-batches one after the other, and what it works on."""

    process: BaseProcess
    connection: Connection
    index: int | None = None
    started: float = 0.0


def main() -> int:
    """Run the job that the settings file describes; return the exit code."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    # The entry script sees only its own arguments and folder.
    sys.argv = [settings["entry_script"], *sys.argv[2:]]
    sys.path[0] = os.getcwd()
    batches = mini_batches(settings)
    print(f"{len(batches)} mini-batches, {settings['workers']} workers", flush=True)
    arguments = predefined_arguments(sys.argv[1:])
    limits = (settings["mini_batch_error_threshold"], int(arguments.allowed_failed_percent * len(batches) / 100))
    most_batches = min((limit for limit in limits if limit >= 0), default=len(batches))
    progress = BatchProgress(batches, most_batches)
    results, failed = run_all(batches, settings, progress)
    write_rows([results[index][0] for index in sorted(results)], settings["append_row_to"])
    missing = {index: max(0, len(batches[index]) - count) for index, (_, count) in results.items()}
    items = sum(missing.values()) + sum(len(batches[index]) for index in failed)
    # The reference of parallel jobs counts these as failed; Microsoft's example of one row for each key shows of which.
    failures = len(failed) + sum(isinstance(batches[index].data, list) for index, count in missing.items() if count)
    most_items = settings["error_threshold"] if arguments.error_threshold is None else arguments.error_threshold
    problem = ""
    if failures > most_batches:
        problem = f"{count_of(failures, 'mini-batch')} failed, {most_batches} allowed"
    elif 0 <= most_items < items:
        problem = f"{count_of(items, 'item')} failed, {most_items} allowed"
    elif batches and not results:
        problem = "all mini-batches failed"
    elif settings["append_row_to"] is not None and not any(count for _, count in results.values()):
        problem = "there is nothing to append"
    if problem:
        why = next(reversed(failed.values()), "run() returned fewer results than it was given items")
        print(f"parallel: error: {problem}: {why}", file=sys.stderr)
    return 1 if problem else 0


def count_of(number: int, thing: str) -> str:
    """Return `1 mini-batch` or `2 mini-batches`."""
    plural = f"{thing}es" if thing.endswith("ch") else f"{thing}s"
    return f"{number} {thing if number == 1 else plural}"


class BatchProgress:
    """Tells how far the job is, in a line of its log now and then."""

    SECONDS_BETWEEN = 0.5

    def __init__(self, batches: list[MiniBatch], most_failed: int) -> None:
        self._batches = batches
        self._most_failed = most_failed
        self._began = time.monotonic()
        self._told, self._ended = -math.inf, -1

    def tell(self, results: Collection[int], failed: Collection[int]) -> None:
        """Tell how many mini-batches have ended, unless that was told already, or something a moment ago."""
        now, ended, total = time.monotonic(), len(results) + len(failed), len(self._batches)
        if ended == self._ended or (ended < total and now - self._told < self.SECONDS_BETWEEN):
            return
        self._told, self._ended = now, ended
        items = sum(len(self._batches[index]) for index in results)
        rate = items / max(now - self._began, 1e-3)
        said = f"{len(failed)} failed, {self._most_failed} allowed, " if failed else ""
        print(f"{ended} of {count_of(total, 'mini-batch')}, {said}{rate:.4g} items per second", flush=True)


def predefined_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return those of the program's arguments that set how much may fail; the entry script sees them as well."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--error_threshold", type=int)
    parser.add_argument("--allowed_failed_percent", type=float, default=100.0)
    return parser.parse_known_args(arguments)[0]


def mini_batches(settings: dict[str, Any]) -> list[MiniBatch]:
    """Divide the input: by partition keys, by rows or bytes of a table, or by numbers of files."""
    source, table, keys = Path(settings["input"]), settings["table"], settings["partition_keys"]
    files = files_of(source, table)
    transformations = table["transformations"] if table else []
    is_table = any(transformation["name"] in _READERS for transformation in transformations)
    size = re.fullmatch(r"\s*(\d+)\s*([kmg]?b?)\s*", (settings["mini_batch_size"] or "").lower())
    if not is_table and table is None:
        is_table = source.is_file() and bool(keys or (size and size[2]))
    if not is_table:
        count = int(size[1]) if size else _DEFAULT_FILES
        names = [str(file) for file in files]
        return [MiniBatch(names[at : at + count]) for at in range(0, len(names), count)]
    frame = read_table(files, source, transformations)
    if keys:
        batches = []
        for value, part in frame.groupby(keys, sort=True):
            values = value if isinstance(value, tuple) else (value,)
            batches.append(MiniBatch(part.reset_index(drop=True), dict(zip(keys, values))))  # noqa: B905
        return batches
    rows = int(size[1]) if size and not size[2] else rows_of(frame, files, size)
    return [MiniBatch(frame.iloc[at : at + rows].reset_index(drop=True)) for at in range(0, len(frame), rows)]


def rows_of(frame: Any, files: list[Path], size: re.Match[str] | None) -> int:
    """Return how many rows of a table take about the size of a mini-batch."""
    wanted = int(size[1]) * _BYTES[size[2].removesuffix("b")] if size else 0
    total = sum(file.stat().st_size for file in files)
    return max(1, int((wanted or _DEFAULT_BYTES) * len(frame) / max(1, total)))


def files_of(source: Path, table: dict[str, Any] | None) -> list[Path]:
    """Return the files of the input, in the order of their names."""
    if source.is_file():
        return [source]
    if table is None:
        return sorted(path for path in source.rglob("*") if path.is_file())
    found: list[Path] = []
    for entry in table["paths"]:
        name = next(str(entry[key]) for key in ("file", "pattern", "folder") if key in entry)
        if "://" in name:
            raise SystemExit(f"error: the MLTable names data that is not here: {name}")
        place = str(source / name)
        matches = sorted(glob.glob(place, recursive=True)) if "pattern" in entry else [place]
        for match in map(Path, matches):
            found += sorted(path for path in match.rglob("*") if path.is_file()) if match.is_dir() else [match]
    return [path for path in found if path.is_file() and path.name != "MLTable"]


def run_all(
    batches: list[MiniBatch], settings: dict[str, Any], progress: BatchProgress
) -> tuple[dict[int, tuple[str, int]], dict[int, str]]:
    """Return by index the rows and number of results of mini-batches, and why others failed every time.

    A worker that takes too long, or dies, is replaced.
    """
    waiting, tries = list(range(len(batches))), [0] * len(batches)
    results: dict[int, tuple[str, int]] = {}
    failed: dict[int, str] = {}
    first_reasons: dict[int, str] = {}
    workers = [start_worker(batches, settings) for _ in range(min(settings["workers"], len(batches)))]

    def retry(index: int, why: str) -> None:
        tries[index] += 1
        first = first_reasons.setdefault(index, why)
        if tries[index] > settings["max_retries"]:
            failed[index] = why if why == first else f"{why} (at its first try: {first})"
        else:
            waiting.append(index)

    while len(results) + len(failed) < len(batches):
        for worker in workers:
            if worker.index is None and waiting:
                worker.index, worker.started = waiting.pop(0), time.monotonic()
                worker.connection.send(worker.index)
        ready = wait([worker.connection for worker in workers if worker.index is not None], timeout=0.5)
        for position, worker in enumerate(workers):
            index = worker.index
            if index is None:
                continue
            is_late = time.monotonic() - worker.started > settings["timeout_seconds"]
            if worker.connection in ready:
                try:
                    result = worker.connection.recv()
                except EOFError:
                    result, is_late = None, True
                if isinstance(result, tuple):
                    results[index] = result
                elif not is_late:
                    retry(index, result)
                worker.index = None
            if is_late and index not in results:
                why = f"mini-batch {index}: its worker ended or took too long"
                print(why, file=sys.stderr, flush=True)
                worker.process.kill()
                retry(index, why)
                workers[position] = start_worker(batches, settings)
        progress.tell(results, failed)
    for worker in workers:
        if worker.process.is_alive():
            worker.connection.send(None)
        worker.process.join()
    return results, failed


def load_module(name: str, path: Path) -> Any:
    """Import a file as a module of this name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def start_worker(batches: list[MiniBatch], settings: dict[str, Any]) -> Worker:
    """Start a worker; it shares the mini-batches by being forked, and exits the job when `init` fails."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=work, args=(there, batches, settings))
    process.start()
    there.close()
    if here.poll(None):
        try:
            here.recv()
        except EOFError:
            print("error: the entry script cannot be imported, or its init() failed", file=sys.stderr)
            for child in multiprocessing.active_children():
                child.kill()
            raise SystemExit(1) from None
    return Worker(process, here)


def work(connection: Connection, batches: list[MiniBatch], settings: dict[str, Any]) -> None:
    """A worker: import the entry script, call `init`, then `run` for each mini-batch that is asked for."""
    path = Path(settings["entry_script"])
    sys.path.insert(0, str(path.resolve().parent))
    module = load_module(path.stem, path)
    getattr(module, "init", lambda: None)()
    takes_context = len(inspect.signature(module.run).parameters) > 1
    connection.send("ready")
    while (index := connection.recv()) is not None:
        batch = batches[index]
        context = MiniBatchContext(index, index, batch.partition_key_value)
        try:
            result = module.run(batch.data, context) if takes_context else module.run(batch.data)
            connection.send((as_rows(result), len(result)))
        except Exception as error:
            traceback.print_exc()
            connection.send(f"{type(error).__name__}: {error}".removesuffix(": "))
    getattr(module, "shutdown", lambda: None)()


def as_rows(result: Any) -> str:
    """Return what `run` returned as lines of text. Raise TypeError for what Azure ML's driver does not take."""
    if hasattr(result, "to_csv") and hasattr(result, "columns"):
        return str(result.to_csv(sep=_SEPARATOR, header=False, index=False, lineterminator="\n"))
    if not isinstance(result, (list, tuple)):
        raise TypeError(f"run() returned {type(result).__name__}, expected a list or a pandas DataFrame")
    return "".join(f"{item}\n" for item in result)


def write_rows(rows: list[str], append_to: str | None) -> None:
    """Write the results of all mini-batches, in their order, into the output that collects them."""
    if append_to is None:
        return
    file = Path(append_to)
    if file.is_dir():
        file /= "parallel_run_step.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(rows), encoding="utf-8")


# How the rows of a table are read and transformed, as its MLTable says:
# https://learn.microsoft.com/azure/machine-learning/reference-yaml-mltable
_READERS = ("read_delimited", "read_parquet", "read_json_lines")
# Python knows the other encodings by the names that an MLTable has for them.
_ENCODINGS = {"utf8bom": "utf-8-sig", "iso88591": "iso-8859-1", "windows1252": "cp1252"}


def read_table(files: list[Path], source: Path, transformations: list[dict[str, Any]]) -> Any:
    """Return all rows as a pandas table, after the transformations of the MLTable, in their order."""
    import pandas

    readers = {one["name"]: one["options"] for one in transformations if one["name"] in _READERS}
    reader = next(iter(readers), "")
    options: dict[str, Any] = readers.get(reader, {})
    frames: list[Any] = []
    for file in files:
        first_columns = list(frames[0].columns) if frames else None
        frame = _read_file(file, reader, options, first_columns)
        if options.get("include_path_column"):
            frame["Path"] = "/" + file.relative_to(source).as_posix() if source.is_dir() else str(file)
        frames.append(frame)
    table = pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()
    for transformation in transformations:
        change = _CHANGES.get(transformation["name"])
        if change is not None:
            table = change(table, transformation["options"])
        elif transformation["name"] not in _READERS:
            raise SystemExit(f"error: a local run does not do the MLTable's transformation {transformation['name']}")
    return table


def _read_file(file: Path, reader: str, options: dict[str, Any], first_columns: list[str] | None) -> Any:
    import pandas

    if reader == "read_parquet" or (not reader and file.suffix == ".parquet"):
        return pandas.read_parquet(file)
    encoding = _ENCODINGS.get(str(options.get("encoding") or "utf8"), options.get("encoding"))
    if reader == "read_json_lines" or (not reader and file.suffix == ".jsonl"):
        return pandas.read_json(file, lines=True, encoding=encoding)
    header = options.get("header", "all_files_same_headers")
    is_named_before = header == "from_first_file" and first_columns is not None
    is_nameless = header in ("no_header", False)
    frame = pandas.read_csv(
        file,
        sep=options.get("delimiter", ","),
        encoding=encoding,
        header=None if is_nameless or is_named_before else 0,
        names=first_columns if is_named_before else None,
        dtype=str if options.get("infer_column_types") is False else None,
        keep_default_na=not options.get("empty_as_string", False),
    )
    if is_nameless:
        frame.columns = [f"Column{number}" for number in range(1, frame.shape[1] + 1)]
    return frame


def _converted(table: Any, changes: Any) -> Any:
    """Return the table with columns of other types; a type is a name, or a mapping with the formats of a date."""
    import pandas

    table = table.copy()
    for change in changes if isinstance(changes, list) else [changes]:
        kind = change["column_type"]
        name, options = next(iter(kind.items())) if isinstance(kind, dict) else (kind, {})
        for column in _as_list(change["columns"]):
            if name == "datetime":
                formats = _as_list((options or {}).get("formats") or [])
                one = formats[0] if len(formats) == 1 else None
                table[column] = pandas.to_datetime(table[column], format=one, errors="coerce")
            elif name in ("int", "float"):
                numbers = pandas.to_numeric(table[column], errors="coerce")
                whole = "Int64" if numbers.isna().any() else "int64"
                table[column] = numbers.astype(whole if name == "int" else "float64")
            elif name == "boolean":
                table[column] = table[column].astype(str).str.lower().isin(["true", "yes", "1", "1.0"])
            else:
                table[column] = table[column].astype(str)
    return table


def _as_list(names: Any) -> list[Any]:
    return list(names) if isinstance(names, list) else [names]


_CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "keep_columns": lambda table, names: table[_as_list(names)],
    "drop_columns": lambda table, names: table.drop(columns=_as_list(names)),
    "skip": lambda table, count: table.iloc[int(count) :].reset_index(drop=True),
    "take": lambda table, count: table.head(int(count)),
    "convert_column_types": _converted,
}


if __name__ == "__main__":
    sys.exit(main())
