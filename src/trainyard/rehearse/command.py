"""A component's command, filled in as Azure ML does: nothing is quoted, and optional parts without a value are dropped.

A value that contains the quote around it therefore ends the quoted text and breaks the command, or has a part of the
value executed, here as there; a strict run refuses such a value. Values outside quotes are the component's
responsibility.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.rehearse.errors import error_at
from trainyard.rehearse.local_data import download, read_mltable, web_address
from trainyard.rehearse.local_jobs import LocalJob
from trainyard.settings.this_machine import available_processors
from trainyard.spec.documents import Value
from trainyard.spec.expressions import Binding, Literal, OptionalPart, Segment, parse_expressions
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component, Parallel, Spark
from trainyard.spec.resolved import settled


def fill_command(
    component: Component,
    inputs: Mapping[str, ParameterValue | Path],
    outputs: Mapping[str, Path],
    *,
    text: Value | None = None,
    strict: bool = False,
) -> str:
    """Return the shell line of a job: `${{inputs.x}}` as a literal's `str()` or a path, `${{outputs.y}}` as a path.

    `${{search_space.x}}` is an input as well: what a sweep draws for it. `$[[ … ]]` is dropped when an optional input
    in it has no value. Another `text` of the component is filled in like its command. Raise `SpecError` for a binding
    to an unknown port, an input without a value outside `$[[ ]]`, and if `strict` for a value that would break out of
    the quotes around it.
    """
    filled = component.command if text is None else text
    return _Filler(component, inputs, outputs, strict).fill(parse_expressions(str(filled.data)))


# What ends a quoted text of a POSIX shell, or has a meaning in it.
_UNSAFE_WITHIN = {"'": "'", '"': '"$`\\'}


@dataclass
class _Filler:
    component: Component
    inputs: Mapping[str, ParameterValue | Path]
    outputs: Mapping[str, Path]
    strict: bool
    quote: str | None = None
    """The quote that is open where it has come to."""

    def fill(self, segments: tuple[Segment, ...]) -> str:
        return "".join(self._segment(segment) for segment in segments)

    def _segment(self, segment: Segment) -> str:
        if isinstance(segment, Literal):
            self.quote = _quote_after(segment.text, self.quote)
            return segment.text
        if isinstance(segment, OptionalPart):
            bindings = [inner for inner in segment.segments if isinstance(inner, Binding)]
            return self.fill(segment.segments) if all(self._is_given(binding) for binding in bindings) else ""
        return self._binding(segment)

    def _is_given(self, binding: Binding) -> bool:
        name = ".".join(binding.path[1:])
        is_absent = binding.path[0] == "inputs" and name in self.component.inputs and name not in self.inputs
        return not is_absent

    def _unbroken(self, text: str, binding: Binding, value: ParameterValue | Path) -> str:
        """Return the text of an input's value if it does not break the quotes around it."""
        unsafe = _UNSAFE_WITHIN.get(self.quote or "", "")
        found = next((character for character in text if character in unsafe), None)
        if found is None or not self.strict:
            return text
        fix = "give a file without it in its name" if isinstance(value, Path) else "give a value without it"
        raise error_at(
            self.component.command.span,
            f"{binding.path[0][:-1]} {'.'.join(binding.path[1:])!r} of {self.component.name} contains {found}, which "
            f"would break the {self.quote} around it in the command: {text}",
            fix,
        )

    def _binding(self, binding: Binding) -> str:
        kind, name = binding.path[0], ".".join(binding.path[1:])
        if kind in ("inputs", "search_space") and name in self.inputs:
            value = self.inputs[name]
            return self._unbroken(str(value), binding, value)
        if kind == "outputs" and name in self.outputs:
            return str(self.outputs[name])
        if kind == "inputs" and name in self.component.inputs:
            raise error_at(
                self.component.command.span, f"{binding.text}: optional input {name!r} has no value; put it in $[[ … ]]"
            )
        raise error_at(
            self.component.command.span,
            f"{binding.text} in the command is not an input or output of {self.component.name}",
        )


def _quote_after(text: str, quote: str | None) -> str | None:
    """Return the quote that is open after this part of a shell line, if `quote` is open before it."""
    is_escaped = False
    for character in text:
        if is_escaped:
            is_escaped = False
        elif character == "\\" and quote != "'":
            is_escaped = True
        elif character == quote:
            quote = None
        elif quote is None and character in _UNSAFE_WITHIN:
            quote = character
    return quote


# What sizes or places executors on a cluster; a local master runs in one process.
_OF_CLUSTERS = (
    "spark.executor.", "spark.dynamicAllocation.", "spark.yarn.", "spark.driver.cores", "spark.driver.memoryOverhead"
)  # fmt: skip
_DRIVER_MEMORY = "spark.driver.memory"
_SIZE = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_GIB_PER_UNIT = {"k": 2**-20, "m": 2**-10, "g": 1, "t": 2**10}


def spark_command(task: Spark, arguments: str) -> str:
    """Return the shell line that submits a Spark job to a master in the job's own process."""
    conf = {key: value for key, value in task.conf.items() if not key.startswith(_OF_CLUSTERS)}
    if _DRIVER_MEMORY in conf:
        conf[_DRIVER_MEMORY] = _within_half(conf[_DRIVER_MEMORY])
    options = ["--master", f"local[{available_processors()}]"]
    for key, value in {"spark.ui.enabled": "false", **conf}.items():
        options += ["--conf", f"{key}={value}"]
    lists = {"--py-files": task.py_files, "--files": task.files, "--jars": task.jars, "--archives": task.archives}
    for flag, files in lists.items():
        if files:
            options += [flag, ",".join(files)]
    return f"spark-submit {shlex.join(options)} {shlex.quote(task.entry_file)} {arguments}".rstrip()


def _within_half(memory: str) -> str:
    """Return a cluster's amount of memory, or half of this machine's where it has no more."""
    half_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 31
    found = _SIZE.fullmatch(memory)
    if found is None or int(found[1]) * _GIB_PER_UNIT[found[2].lower()] <= half_gib:
        return memory
    return f"{max(1, half_gib)}g"


_SETTINGS_FILE = "parallel.json"
# Not imported: they are for the job's own Python.
PROGRAMS = Path(__file__).resolve().parent / "job_programs"
WITHOUT_GPUS = PROGRAMS / "without_gpus"
"""What a job's PYTHONPATH has first, so that the CPU stands in for GPUs in its PyTorch."""


def parallel_command(data_folder: Path, arguments: str) -> str:
    """Return the shell line that runs a parallel job whose settings are in its data folder."""
    program = shlex.quote(str(PROGRAMS / "parallel_program.py"))
    return f"python {program} {shlex.quote(str(data_folder / _SETTINGS_FILE))} {arguments}".rstrip()


def write_settings(
    job: LocalJob,
    task: Parallel,
    inputs: Mapping[str, ParameterValue | Path],
    outputs: Mapping[str, Path],
    data_folder: Path,
) -> None:
    """Write what the program needs to know; raise OSError, or `RunError` for an MLTable that cannot be read."""
    source = fill_command(job.component, inputs, outputs, text=task.input_data)
    append_to = task.append_row_to and fill_command(job.component, inputs, outputs, text=task.append_row_to)
    of_node, nodes = _text(job, task.max_concurrency_per_instance) or "", settled(job.use.instance_count)
    concurrency = (int(of_node) if of_node.isdecimal() else 1) * (nodes if isinstance(nodes, int) else 1)
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
    for entry in table["paths"] if table is not None else ():
        addresses = {kind: web_address(path) for kind, path in entry.items()}
        entry |= {kind: str(download(address, downloads)) for kind, address in addresses.items() if address is not None}
    return table


def _text(job: LocalJob, value: Value | None) -> str | None:
    return str(settled(job.use.resolve(value))) if value is not None and value.data is not None else None
