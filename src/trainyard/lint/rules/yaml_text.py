"""The file and its YAML. Found while a document is read (`spec/documents.py`, `spec/literals.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Document, Node, describe
from trainyard.spec.kinds import COMPUTE_TYPES, Kind, kind_by_schema
from trainyard.spec.rule import Example, Rule
from trainyard.spec.rules.documents import (
    YAML_TRAP,
)

_OTHER_SCHEMA = Rule(
    "AML012",
    "schema-of-other-kind",
    "warning",
    summary="`$schema` names the schema of another kind of file.",
    why="Azure ML's client ignores it, but editors use it for completion and validation.",
    example=Example("""\
$schema: ‸https://azuremlschemas.azureedge.net/latest/‹commandJob⇒commandComponent›.schema.json
type: command
name: train
is_deterministic: false
command: python train.py
environment: azureml:torch:3
"""),
)
CHECK_FAILED = Rule(
    "AML013",
    "check-failed",
    "error",
    summary="The linter itself failed on a file.",
    why="This is a bug in Trainyard: other problems in this file may not be reported. Other files are still checked.",
)
RULES = (_OTHER_SCHEMA, CHECK_FAILED)

# Numbers to everybody but YAML 1.1, which wants a dot and a sign.
_EXPONENT = re.compile(r"([-+]?[0-9][0-9_]*)(\.[0-9_]*)?[eE]([-+]?)([0-9]+)")
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
# A plain text may go on in the next line, which then is no list's item, whatever it looks like.
_SWALLOWED_ITEM = re.compile(r"\n[ \t]+(-)[ \t]+\S")
_INDENT_HINT = "Give all items of the list the same indentation."
# Beneath these, every value is sent as a text.
_SENT_AS_TEXT = ("environment_variables", "tags", "properties")
_KINDS_OF_JOBS: frozenset[Kind] = frozenset({"command_job", "sweep_job", "other_job"})


def check_document(document: Document, kind: Kind, context: LintContext) -> Iterator[Diagnostic]:
    """Values that YAML 1.1 reads as something else, and a `$schema` that is another kind's."""
    if kind == "profile":
        return
    yield from _traps(document.root, (), document)
    named = kind_by_schema(document.root)
    schema = document.root.get("$schema")
    if named == kind == "compute" and schema is not None:
        yield from _compute_schema(document, schema)
    if named is None or schema is None or named == kind or {named, kind} <= _KINDS_OF_JOBS - {"command_job"}:
        return
    message = f"this is the schema of {_IN_WORDS[named]}, and the file is {_IN_WORDS[kind]}"
    yield _OTHER_SCHEMA.at(schema.span, message, "Write the address that fits, or remove the line.")


def _compute_schema(document: Document, schema: Node) -> Iterator[Diagnostic]:
    """A cluster that is given the schema of a single machine, or the other way round."""
    stated = document.root.get("type")
    said = next((kind for kind in COMPUTE_TYPES if f"/{kind}.schema" in schema.text.lower()), None)
    if stated is not None and said is not None and stated.text.lower() in COMPUTE_TYPES and stated.text.lower() != said:
        message = f"this is the schema of {said}, and the file's type is {stated.text}"
        yield _OTHER_SCHEMA.at(schema.span, message, "Write the address that fits, or remove the line.")


_IN_WORDS: dict[Kind, str] = {
    "pipeline": "a pipeline",
    "component": "a component",
    "pipeline_component": "a pipeline component",
    "command_job": "a command job",
    "sweep_job": "a sweep",
    "other_job": "a job of another kind",
    "schedule": "a schedule",
    "asset": "data or a model",
    "environment": "an environment",
    "compute": "a compute target",
}


def _traps(node: Node, path: tuple[str, ...], document: Document) -> Iterator[Diagnostic]:
    if node.is_mapping:
        for name, entry in node.entries.items():
            yield from _traps(entry.value, (*path, name), document)
    elif isinstance(node.data, list):
        for item in node.items:
            yield from _traps(item, path, document)
    elif path and node.data is not None and not _is_quoted(node, document):
        yield from _trap(node, path, document)


def _trap(node: Node, path: tuple[str, ...], document: Document) -> Iterator[Diagnostic]:
    text, data = node.text, node.data
    if isinstance(data, str):
        swallowed = _SWALLOWED_ITEM.search(document.text, *node.offsets)
        if swallowed is not None:
            position = document.position(swallowed.start(1))
            span = Span(document.file, *position, position[0], position[1] + 1)
            yield YAML_TRAP.at(span, "this is no item of its own: it is read as part of the one above", _INDENT_HINT)
        match = _EXPONENT.fullmatch(text)
        if match is not None and ("inputs" in path or "environment_variables" not in path):
            right = f"{match[1]}{match[2] or '.0'}{'0' if match[2] == '.' else ''}e{match[3] or '+'}{match[4]}"
            message = f"YAML 1.1 reads {text} as a text, not as a number"
            yield YAML_TRAP.at(node.span, message, f'Write {right}, or quote it: "{text}".', replacement=right)
        return
    quoted = f'"{text}"'
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        if _OCTAL.fullmatch(text) or _SEXAGESIMAL.fullmatch(text):
            message = f"YAML 1.1 reads {text} as {describe(data)}"
            yield YAML_TRAP.at(node.span, message, f"Quote it: {quoted}.", replacement=quoted)
        elif (path == ("version",) or path[-1] == "runtime_version" or _is_sent_as_text(path)) and str(data) != text:
            message = f"YAML reads {text} as {describe(data)}, and '{data}' is sent"
            yield YAML_TRAP.at(node.span, message, f"Quote it: {quoted}.", replacement=quoted)
    elif isinstance(data, bool) and text.lower() not in ("true", "false") and _is_sent_as_text(path):
        message = f"YAML 1.1 reads {text} as {describe(data)}, and '{data}' is sent"
        yield YAML_TRAP.at(node.span, message, f"Quote it: {quoted}.", replacement=quoted)


def _is_sent_as_text(path: tuple[str, ...]) -> bool:
    return len(path) > 1 and path[-2] in _SENT_AS_TEXT


def _is_quoted(node: Node, document: Document) -> bool:
    begin, _ = node.offsets
    return document.text[begin : begin + 1] in ("'", '"', "|", ">")
