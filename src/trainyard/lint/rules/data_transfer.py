"""Data transfer in a pipeline: which data each kind of transfer takes and makes."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Severity
from trainyard.spec.documents import Node
from trainyard.spec.parsed import ParsedPipeline
from trainyard.spec.rule import Rule

# The data that goes with each kind of source or sink outside of Azure ML.
_IMPORTED = {"database": "mltable", "file_system": "uri_folder"}
_EXPORTED = {"database": "uri_file", "file_system": "uri_folder"}


DATA_TRANSFER = Rule("AML317", "data-transfer", "error").explained(
    summary="A data transfer has data that its kind does not take or make.",
    why="`copy_data` has one output, of the type of its only input, or a uri_folder for several. `import_data` has one "
    "output `sink`: an mltable from a database, a uri_folder from a file system. `export_data` has one input `source`: "
    "a uri_file for a database. Azure ML's client refuses anything else.",
    example="""\
type: pipeline
settings: {default_compute: serverless}
jobs:
  fetch:
    type: data_transfer
    task: import_data
    source: {type: database, connection: azureml:sales, query: select * from sales}
    outputs:
      sink: {type: ‹uri_folder⇒mltable›}
""",
)


@check("pipeline")
def _data_transfer(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    for job in pipeline.model.jobs.values():
        kind = job.node.get("type")
        if kind is not None and kind.text.lower() == "data_transfer" and job.node.get("component") is None:
            yield from _transfer(job.node)


@check("file")
def _component(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    kind = file.document.root.get("type") if file.kind == "component" else None
    if kind is not None and kind.text.lower() == "data_transfer" and _text(file.document.root, "task") == "copy_data":
        yield from _copy(file.document.root)


def _transfer(job: Node) -> Iterator[Diagnostic]:
    task = _text(job, "task")
    if task == "copy_data":
        yield from _copy(job)
    elif task == "import_data":
        yield from _only(job, "outputs", "sink", task)
        yield from _goes_with(job, "source", _IMPORTED, "outputs", "sink")
    elif task == "export_data":
        yield from _only(job, "inputs", "source", task)
        yield from _goes_with(job, "sink", _EXPORTED, "inputs", "source")


def _copy(job: Node) -> Iterator[Diagnostic]:
    outputs, inputs = job.entries_of("outputs"), job.entries_of("inputs")
    if len(outputs) > 1:
        second = list(outputs.values())[1]
        message = f"copy_data has one output, and this has {len(outputs)}"
        yield DATA_TRANSFER.at(second.key.span, message, "Write a job for each.")
        return
    read = [_type(entry.value) for entry in inputs.values()]
    made = next((_type(entry.value) for entry in outputs.values()), None)
    if made is None or not read or None in read:
        return
    expected = "uri_folder" if len(read) > 1 else getattr(read[0], "text", "")
    if made.text != expected:
        several = "several inputs" if len(read) > 1 else f"an input of type {expected}"
        message = f"copy_data makes a {expected} of {several}, not a {made.text}"
        # The client looks at components; a job of its own is refused by the service.
        severity: Severity = "error" if job.get("name") is not None else "warning"
        yield DATA_TRANSFER.at(made.span, message, f"Write `type: {expected}`.", severity=severity)


def _only(job: Node, kind: str, name: str, task: str) -> Iterator[Diagnostic]:
    for other, entry in job.entries_of(kind).items():
        if other != name:
            message = f"{task} has one {kind.removesuffix('s')}, named '{name}', and not '{other}'"
            yield DATA_TRANSFER.at(entry.key.span, message, f"Name it '{name}'.")


def _goes_with(job: Node, outside: str, types: dict[str, str], kind: str, name: str) -> Iterator[Diagnostic]:
    place, port = _text(job.get(outside), "type"), job.find(kind, name)
    expected, written = types.get(place), _type(port)
    if expected is not None and written is not None and written.text != expected:
        message = f"the {name} of a {place.replace('_', ' ')} is a {expected}, not a {written.text}"
        yield DATA_TRANSFER.at(written.span, message, f"Write `type: {expected}`.")


def _type(port: Node | None) -> Node | None:
    found = port.get("type") if port is not None and port.is_mapping else None
    return found if found is not None and found.is_text else None


def _text(node: Node | None, key: str) -> str:
    found = node.get(key) if node is not None and node.is_mapping else None
    return found.text.lower() if found is not None and found.is_text else ""
