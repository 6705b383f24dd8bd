"""A parallel job as one command: the program that divides its input, started with its settings in a file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.rehearse.command import fill_text
from trainyard.rehearse.downloads import download, web_address
from trainyard.rehearse.machine import available_processors
from trainyard.rehearse.mltables import read_mltable
from trainyard.rehearse.resolution import ResolvedJob
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Parallel, Value
from trainyard.spec.resolved import settled

_SETTINGS_FILE = "parallel.json"
# Not imported: it is for the job's own Python.
_PROGRAM = Path(__file__).resolve().with_name("parallel_program.py")


def parallel_command(data_folder: Path, arguments: str) -> str:
    """Return the shell line that runs a parallel job whose settings are in its data folder."""
    program = shlex.quote(str(_PROGRAM))
    return f"python {program} {shlex.quote(str(data_folder / _SETTINGS_FILE))} {arguments}".rstrip()


def write_settings(
    job: ResolvedJob,
    task: Parallel,
    inputs: Mapping[str, ParameterValue | Path],
    outputs: Mapping[str, Path],
    data_folder: Path,
) -> None:
    """Write what the program needs to know; raise OSError, or `RunError` for an MLTable that cannot be read."""
    source = fill_text(str(task.input_data.data), job.component, inputs, outputs)
    append_to = fill_text(str(task.append_row_to.data), job.component, inputs, outputs) if task.append_row_to else None
    concurrency = _number(job, task.max_concurrency_per_instance, 1) * _number_of_nodes(job)
    settings = {
        "entry_script": task.entry_script,
        "input": source,
        "table": _table(Path(source), data_folder / "downloads"),
        "mini_batch_size": _text(job, task.mini_batch_size),
        "partition_keys": list(task.partition_keys),
        "append_row_to": append_to,
        "error_threshold": task.error_threshold,
        "mini_batch_error_threshold": task.mini_batch_error_threshold,
        "max_retries": task.max_retries,
        "timeout_seconds": task.timeout_seconds,
        "workers": max(1, min(concurrency, available_processors())),
    }
    (data_folder / _SETTINGS_FILE).write_text(json.dumps(settings, indent=1), encoding="utf-8")


def _table(source: Path, downloads: Path) -> dict[str, Any] | None:
    """The paths and transformations of an MLTable; None for other data. Files with a public address are downloaded."""
    table = read_mltable(source)
    if table is not None:
        table["paths"] = [{kind: _local(path, downloads) for kind, path in each.items()} for each in table["paths"]]
    return table


def _local(path: str, downloads: Path) -> str:
    address = web_address(path)
    return str(download(address, downloads)) if address is not None else path


def _text(job: ResolvedJob, value: Value | None) -> str | None:
    return str(settled(job.use.resolve(value))) if value is not None and value.data is not None else None


def _number(job: ResolvedJob, value: Value | None, default: int) -> int:
    text = _text(job, value)
    return int(text) if text is not None and text.isdecimal() else default


def _number_of_nodes(job: ResolvedJob) -> int:
    nodes = settled(job.use.instance_count)
    return nodes if isinstance(nodes, int) else 1
