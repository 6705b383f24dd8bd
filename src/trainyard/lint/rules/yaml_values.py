"""Values that YAML 1.1 reads as something else, and `$schema` lines that do not match the file."""

from __future__ import annotations

from collections.abc import Iterator

from trainyard.lint.checks import LintContext, LintedFile, check
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Node, describe
from trainyard.spec.file_kinds import COMPUTE_TYPES, KIND_NAMES, Kind, kind_by_schema
from trainyard.spec.rule import Rule
from trainyard.spec.rules import YAML_TRAP

_OCTAL = regex(r"[-+]?0(?!0*\Z)[0-7_]+")  # 00 is 0 in any base
_SEXAGESIMAL = regex(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
# YAML 1.1's timestamps, as PyYAML finds them.
_DATE = regex(r"[0-9]{4}-(?:[0-9]{2}-[0-9]{2}|[0-9]{1,2}-[0-9]{1,2}(?:[Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}.*)")
# An unquoted string may continue on the next line, even if that looks like a list item.
_SWALLOWED_ITEM = regex(r"\n[ \t]+(-)[ \t]+\S")
# Every value beneath these keys is sent as a string.
_SENT_AS_STRING = ("environment_variables", "tags", "properties")
# Their tags and properties may be dates, of which the client sends `str()`; it refuses those of jobs and components.
_ASSETS = ("asset", "environment", "online_endpoint", "batch_endpoint", "online_deployment", "batch_deployment")
_JOB_KINDS: frozenset[Kind] = frozenset({"command_job", "sweep_job", "other_job"})


SCHEMA_OF_OTHER_KIND = Rule("AML012", "schema-of-other-kind", "warning").explained(
    summary="`$schema` names the schema of another kind of file.",
    why="Azure ML's client ignores it, but editors use it for completion and validation.",
)


@check("file")
def _schema_of_other_kind(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    root, kind = file.root, file.kind
    named, schema = kind_by_schema(root), root.get("$schema")
    if named is None or schema is None or kind == "profile":
        return
    found, actual = KIND_NAMES[named], KIND_NAMES[kind]
    if named == kind == "compute":
        # Clusters and single machines are one kind here, but have a schema each.
        type_node = root.get("type")
        actual = type_node.text.lower() if type_node is not None else ""
        found = next((each for each in COMPUTE_TYPES if f"/{each}.schema" in schema.text.lower()), actual)
        if actual not in COMPUTE_TYPES:
            return
    if found != actual and not {named, kind} <= _JOB_KINDS - {"command_job"}:
        message = f"this is the schema of {found}, but the file is {actual}"
        yield SCHEMA_OF_OTHER_KIND.at(schema.span, message, "Use the matching schema, or remove the line.")


@check("file")
def _yaml_traps(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    if file.kind != "profile":
        for path, node in file.document.scalars:
            is_quoted = file.document.text[slice(*node.offsets)][:1] in ("'", '"', "|", ">")
            if path and node.data is not None and not is_quoted:
                yield from _trap(node, path, file)


def _trap(node: Node, path: tuple[str, ...], file: LintedFile) -> Iterator[Diagnostic]:
    text, data, document = node.text, node.data, file.document
    quoted = f'"{text}"'
    if isinstance(data, str):
        taken = _SENT_AS_STRING if file.kind in _ASSETS or "environment" in path else _SENT_AS_STRING[:1]
        if text[:1].isdigit() and _DATE.fullmatch(text) and path[-1] != "version" and not {*taken} & {*path}:
            message = f"YAML reads {text} as a date, and Azure ML's client takes only a string"
            yield YAML_TRAP.at(node.span, message, f"Quote it: {quoted}.", replacement=quoted, severity="error")
        begin, end = node.offsets
        if "\n" not in document.text[begin:end]:
            return
        swallowed = _SWALLOWED_ITEM.search(document.text, begin, end)
        if swallowed is not None:
            position = document.position(swallowed.start(1))
            span = Span(document.file, *position, position[0], position[1] + 1)
            message = "this is not a list item: YAML reads it as part of the item above"
            yield YAML_TRAP.at(span, message, "Give all items of the list the same indentation.")
        return
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        if _OCTAL.fullmatch(text) or _SEXAGESIMAL.fullmatch(text):
            message = f"YAML 1.1 reads {text} as {describe(data)}"
            yield YAML_TRAP.at(node.span, message, f"Quote it: {quoted}.", replacement=quoted)
        elif (path == ("version",) or path[-1] == "runtime_version" or _is_sent_as_string(path)) and str(data) != text:
            message = f"YAML reads {text} as {describe(data)}, and Azure ML gets '{data}'"
            yield YAML_TRAP.at(node.span, message, f"Quote it: {quoted}.", replacement=quoted)
    elif isinstance(data, bool) and text.lower() not in ("true", "false") and _is_sent_as_string(path):
        message = f"YAML 1.1 reads {text} as {describe(data)}, and Azure ML gets '{data}'"
        yield YAML_TRAP.at(node.span, message, f"Quote it: {quoted}.", replacement=quoted)


def _is_sent_as_string(path: tuple[str, ...]) -> bool:
    return len(path) > 1 and path[-2] in _SENT_AS_STRING
