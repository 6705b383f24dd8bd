"""The file and its YAML. Found while a document is read (`spec/documents.py`, `spec/literals.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.lint.rule import Example, Rule
from trainyard.lint.surroundings import Surroundings
from trainyard.spec import rule_ids
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Document, Node, describe
from trainyard.spec.kinds import COMPUTE_TYPES, Kind, kind_by_schema

RULES = (
    Rule(
        rule_ids.UNREADABLE_FILE,
        "unreadable-file",
        "error",
        "The file cannot be read.",
        "It is not there, is no plain file, or may not be opened.",
    ),
    Rule(
        rule_ids.YAML_SYNTAX,
        "yaml-syntax",
        "error",
        "The text is not YAML.",
        "The place is where the parser gave up; where it names what it was reading, that is shown too.",
        Example("""\
type: command
name: train
command: python train.py
description: ‹Trains‸: well⇒"Trains: well"›
environment: azureml:torch:3
"""),
    ),
    Rule(
        rule_ids.WRONG_ENCODING,
        "wrong-encoding",
        "error",
        "The file is not text in UTF-8.",
        "Binary files, UTF-16 and Latin-1 are not read by Azure ML's client either.",
    ),
    Rule(
        rule_ids.TOO_LARGE,
        "too-large",
        "error",
        "The file, its nesting or what its aliases stand for is too large.",
        "More than 2 MiB, more than 100 levels, or aliases that stand for more than 200,000 values are not read.",
        Example("""\
type: command
name: train
command: python train.py
environment: azureml:torch:3
tags: ‸‹&tags {a: *tags}⇒{a: b}›
"""),
    ),
    Rule(
        rule_ids.NOT_ONE_DOCUMENT,
        "not-one-document",
        "error",
        "Azure ML reads files of exactly one YAML document.",
        "Its client refuses a file with two, and one with none.",
        Example("""\
type: command
name: train
command: python train.py
environment: azureml:torch:3
‹---
‸version: "2"⇒version: "2"›
"""),
    ),
    Rule(
        rule_ids.NOT_A_MAPPING,
        "not-a-mapping",
        "error",
        "An Azure ML file consists of keys with values.",
        "A list, or a text alone, says nothing to Azure ML.",
        Example("""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
=== train.yaml
‹- ⇒›type: command
‹  ⇒›name: train
‹  ⇒›command: python train.py
‹  ⇒›environment: azureml:torch:3
"""),
    ),
    Rule(
        rule_ids.DUPLICATE_KEY,
        "duplicate-key",
        "error",
        "A key is written twice: the last one wins in silence.",
        "A whole job can vanish this way: Azure ML's client reads the second and forgets the first.",
        Example("""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: azureml:train:1
  ‹train⇒evaluate›:
    component: azureml:evaluate:1
"""),
    ),
    Rule(
        rule_ids.UNKNOWN_TAG,
        "unknown-tag",
        "error",
        "A YAML tag that Azure ML's client does not read.",
        "`!tag` and `!!python/…` make its loader stop.",
        Example("""\
type: amlcompute
name: cpu-cluster
size: Standard_D8s_v5
max_instances: ‹!count ⇒›2
"""),
    ),
    Rule(
        rule_ids.KEY_NOT_TEXT,
        "key-not-text",
        "error",
        "A key is a list or a mapping.",
        "Braces open a mapping in YAML: a binding without its `$` becomes a key that is a mapping.",
        Example("""\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs:
  epochs: 3
jobs:
  train:
    component: azureml:train:1
    inputs:
      epochs: ‸‹⇒$›{{parent.inputs.epochs}}
"""),
    ),
    Rule(
        rule_ids.YAML_TRAP,
        "yaml-trap",
        "warning",
        "YAML 1.1 reads an unquoted text as something else.",
        "Azure ML's client reads YAML 1.1: `no` is False, `1.10` is 1.1, `010` is 8, `12:30` is 750, `3e-4` a text. "
        "Then `str()` of it is sent. Quote texts; write numbers as `0.0003` or `3.0e-4`.",
        Example("""\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  train:
    component: ./train.yaml
    inputs:
      label: ‹no⇒"no"›
=== train.yaml
type: command
name: train
command: python -m train --label '${{inputs.label}}'
environment: azureml:torch:3
inputs:
  label: {type: string}
"""),
    ),
    Rule(
        rule_ids.UNKNOWN_KIND,
        "unknown-kind",
        "error",
        "The file is of another kind than it is used as.",
        "Files that are not Azure ML's are passed over in folders; when one is named itself, this says that nothing in "
        "it was checked.",
    ),
    Rule(
        rule_ids.SCHEMA_OF_OTHER_KIND,
        "schema-of-other-kind",
        "warning",
        "`$schema` is that of another kind of file.",
        "Azure ML's client does not look at it, but editors do: they complete and underline by it.",
        Example("""\
$schema: ‸https://azuremlschemas.azureedge.net/latest/‹commandJob⇒commandComponent›.schema.json
type: command
name: train
is_deterministic: false
command: python train.py
environment: azureml:torch:3
"""),
    ),
    Rule(
        rule_ids.CHECK_FAILED,
        "check-failed",
        "error",
        "The linter itself failed at a file.",
        "This is a mistake in Trainyard: what else is wrong with the file may be missing; other files are checked.",
    ),
)
_BY_ID = {rule.id: rule for rule in RULES}
_TRAP, _OTHER_SCHEMA = _BY_ID[rule_ids.YAML_TRAP], _BY_ID[rule_ids.SCHEMA_OF_OTHER_KIND]

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


def check_document(document: Document, kind: Kind, surroundings: Surroundings) -> Iterator[Diagnostic]:
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
    yield _OTHER_SCHEMA.found(schema.span, message, "Write the address that fits, or remove the line.")


def _compute_schema(document: Document, schema: Node) -> Iterator[Diagnostic]:
    """A cluster that is given the schema of a single machine, or the other way round."""
    stated = document.root.get("type")
    said = next((kind for kind in COMPUTE_TYPES if f"/{kind}.schema" in schema.text.lower()), None)
    if stated is not None and said is not None and stated.text.lower() in COMPUTE_TYPES and stated.text.lower() != said:
        message = f"this is the schema of {said}, and the file's type is {stated.text}"
        yield _OTHER_SCHEMA.found(schema.span, message, "Write the address that fits, or remove the line.")


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
            yield _TRAP.found(span, "this is no item of its own: it is read as part of the one above", _INDENT_HINT)
        match = _EXPONENT.fullmatch(text)
        if match is not None and ("inputs" in path or "environment_variables" not in path):
            right = f"{match[1]}{match[2] or '.0'}{'0' if match[2] == '.' else ''}e{match[3] or '+'}{match[4]}"
            message = f"YAML 1.1 reads {text} as a text, not as a number"
            yield _TRAP.found(node.span, message, f'Write {right}, or quote it: "{text}".', replacement=right)
        return
    quoted = f'"{text}"'
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        if _OCTAL.fullmatch(text) or _SEXAGESIMAL.fullmatch(text):
            message = f"YAML 1.1 reads {text} as {describe(data)}"
            yield _TRAP.found(node.span, message, f"Quote it: {quoted}.", replacement=quoted)
        elif (path == ("version",) or path[-1] == "runtime_version" or _is_sent_as_text(path)) and str(data) != text:
            message = f"YAML reads {text} as {describe(data)}, and '{data}' is sent"
            yield _TRAP.found(node.span, message, f"Quote it: {quoted}.", replacement=quoted)
    elif isinstance(data, bool) and text.lower() not in ("true", "false") and _is_sent_as_text(path):
        message = f"YAML 1.1 reads {text} as {describe(data)}, and '{data}' is sent"
        yield _TRAP.found(node.span, message, f"Quote it: {quoted}.", replacement=quoted)


def _is_sent_as_text(path: tuple[str, ...]) -> bool:
    return len(path) > 1 and path[-2] in _SENT_AS_TEXT


def _is_quoted(node: Node, document: Document) -> bool:
    begin, _ = node.offsets
    return document.text[begin : begin + 1] in ("'", '"', "|", ">")
