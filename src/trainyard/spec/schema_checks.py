"""Checks against the JSON Schemas: the validator's errors become findings that name the key, the value and the fix."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from trainyard.resources import schema_source, shared_definitions, word_tables
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match, closest, did_you_mean, only_close
from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span
from trainyard.spec.documents import Document, Node, describe, shorten
from trainyard.spec.file_kinds import Kind
from trainyard.spec.model import PARAMETER_TYPES
from trainyard.spec.parsed import BAD_REFERENCE
from trainyard.spec.rules import (
    BAD_ASSET_NAME,
    BAD_TEXT,
    MISSING_KEY,
    NOT_A_CHOICE,
    OUT_OF_BOUNDS,
    UNKNOWN_KEY,
    WRONG_TYPE,
)
from trainyard.spec.set_arguments import COMMAND_LINE
from trainyard.spec.yaml_parsing import invisible_indent

if TYPE_CHECKING:
    import jsonschema_rs

# Our annotations in schemas: what a value must be, in words; the rule, if the keyword's own does not fit; and the
# severity, if Azure ML's client accepts the value anyway.
_EXPECTED, _RULE, _SEVERITY = "x-expected", "x-rule", "x-severity"

# In a definition: the type of the jobs that it is for, one of the rare ones.
_WORD = "x-word"
# Whole words: a comment on data-parallel training has none. To look for them one by one is 30 times as fast.
_RARE_JOBS = ("parallel", "spark", "sweep", "automl", "data_transfer")
_NAMES_RARE_JOB = regex(rf"(?<![\w-])(?:{'|'.join(_RARE_JOBS)})(?![\w-])")
_NAME_AND_VERSION = regex(r"[\w-][\w.-]*(?::[\w.-]+|@latest)")
_SHARED = "common.schema.json"
# What most pipelines consist of: half the time of one after the other, since they have most definitions in common.
_COMPILED_TOGETHER = ("pipeline", "component", "environment")
# A mapping with more unknown keys than this is not full of typos.
_MOST_HINTS = 100

# What Azure ML's client does with an unknown key, by place.
_FATE_AT_ROOT: dict[Kind, str] = {
    "component": "Azure ML ignores it and uses the default",
    "pipeline_component": "Azure ML ignores it and uses the default",
    "profile": "no template reads it",
}
_FATE_IN_JOB = "Azure ML sends it along and ignores it"
_FATE_IN_SETTINGS = "Azure ML's client sends it along, and nothing is known to read it"
_FATE_IN_TASK = "Azure ML's client drops it"
_FATE_ELSEWHERE = "Azure ML's client refuses the file"


@cache
def bundled_schema(name: str) -> dict[str, Any]:
    """Return a schema with the shared definitions in its own `$defs`, so that it is self-contained."""
    text = schema_source(name).read_text(encoding="utf-8")
    if _SHARED not in text:
        return dict(json.loads(text))
    schema = json.loads(text.replace(f'"{_SHARED}#', '"#'))
    schema["$defs"] = {**shared_definitions(), **schema.get("$defs", {})}
    return dict(schema)


@cache
def _validator(names: tuple[str, ...], *, is_whole: bool) -> tuple[jsonschema_rs.Validator, dict[str, Any]]:
    """The validator of `{name: data}`, and its schema; if not the whole, without the definitions of rare kinds of jobs.

    Their patterns take most of the time: linting one pipeline takes 13 % longer with the whole schema.
    """
    import jsonschema_rs

    definitions: dict[str, Any] = {}
    properties = {}
    for name in names:
        schema = dict(bundled_schema(name))
        definitions |= schema.pop("$defs", {})
        properties[name] = {key: value for key, value in schema.items() if key != "$id"}
    if not is_whole:
        definitions = {key: {} if _WORD in definition else definition for key, definition in definitions.items()}
    together = {"$defs": definitions, "properties": properties}
    return jsonschema_rs.validator_for(together), together


def schema_of(kind: Kind) -> str | None:
    """Return the name of the schema for a kind of file; None if there is none."""
    if kind == "settings":
        return None
    return "component" if kind == "pipeline_component" else kind


def check_schema(document: Document, kind: Kind) -> Iterator[Diagnostic]:
    """Yield the violations of a document's schema, each at its key or value."""
    name = schema_of(kind)
    if name is None:
        return
    text = document.text.lower()
    has_rare_job = any(word in text for word in _RARE_JOBS) and _NAMES_RARE_JOB.search(text) is not None
    names = _COMPILED_TOGETHER if name in _COMPILED_TOGETHER else (name,)
    validator, schema = _validator(names, is_whole=has_rare_job)
    data = document.data if document.is_finite else _finite(document.data)
    for error in validator.iter_errors({name: data}):
        yield from _translate(error, document, kind, schema)


def _finite(data: Any, stand_in: object = ((),)) -> Any:
    """The data without infinities and NaN, which JSON does not have, and the client takes in declarations only."""
    if isinstance(data, dict):
        declared = ("default",) if data.get("type") == "integer" else ("default", "min", "max")
        return {key: _finite(each, 0.0 if key in declared else stand_in) for key, each in data.items()}
    if isinstance(data, list):
        return [_finite(value, stand_in) for value in data]
    return stand_in if isinstance(data, float) and not math.isfinite(data) else data


def _translate(error: Any, document: Document, kind: Kind, schema: dict[str, Any]) -> Iterator[Diagnostic]:
    path = _as_written(error.instance_path[1:], document.root)
    keyword: str = error.kind.name
    holder = _holder(schema, error.schema_path)
    if keyword in ("additionalProperties", "unevaluatedProperties"):
        for number, key in enumerate(error.kind.value):
            yield _unknown_key(key, path, holder, document, kind, with_hint=number < _MOST_HINTS)
    elif keyword == "required":
        yield _missing_key(error.kind.value, path, holder, document)
    elif keyword == "propertyNames":
        yield from _bad_names(path, holder, document)
    else:
        yield _wrong_value(keyword, error.kind.value, path, holder, document)


def _as_written(path: Sequence[str | int], root: Node) -> list[str | int]:
    """Return the path with the keys of the document: the validator reports a key of digits as an index."""
    written: list[str | int] = []
    node = root
    for step in path:
        if isinstance(step, int) and node.is_mapping:
            name = str(step)
            if name not in node.entries:  # `01`, or `+1`
                name = next(key for key in node.entries if key.lstrip("+0") == name.lstrip("0"))
            written.append(name)
            node = node.entries[name].value
        elif isinstance(step, int) and not node.items:
            break  # inside the list that stands for an infinity or NaN
        else:
            written.append(step)
            node = node.items[step] if isinstance(step, int) else node.entries[step].value
    return written


def _holder(schema: dict[str, Any], schema_path: list[str | int]) -> dict[str, Any]:
    """Return the schema object that contains the failed keyword."""
    found: Any = schema
    for step in schema_path[:-1]:
        found = found[step]
    return dict(found) if isinstance(found, dict) else {}


def _unknown_key(
    key: str, path: list[str | int], holder: Mapping[str, Any], document: Document, kind: Kind, *, with_hint: bool
) -> Diagnostic:
    known = _writable(holder) if with_hint else []
    # A component that is written in place is read like one in a file of its own.
    in_place = path[:1] == ["jobs"] and path[2:] == ["component"]
    if not path:
        where, fate = "here", _FATE_AT_ROOT.get(kind, _FATE_ELSEWHERE)
    elif in_place:
        where, fate = f"in the component of the job '{path[1]}'", _FATE_AT_ROOT["component"]
    elif len(path) == 2 and path[0] == "jobs":
        inline = document.node_at(path).get("component") is None
        where, fate = f"in the job '{path[-1]}'", _FATE_ELSEWHERE if inline else _FATE_IN_JOB
    else:
        where = f"in '{shorten(path[-1])}'" if isinstance(path[-1], str) else "here"
        silent = kind == "component" and path[0] in ("distribution", "resources")
        silent = silent or _is_parameter_output(path, document, kind)
        fate = _FATE_AT_ROOT["component"] if silent else _FATE_ELSEWHERE
    severity: Severity = "error"
    if kind == "profile":
        fate = _FATE_AT_ROOT["profile"]
    elif not path and kind == "component" and key in _KEYS_OF_JOBS:
        fate, severity = "Azure ML ignores it: the job that uses the component sets it", "warning"
    elif (in_place or (not path and kind in ("component", "pipeline_component"))) and only_close(key, known) is None:
        fate, severity = "Azure ML ignores it", "warning"
    elif path[-1:] == ["settings"] and kind in ("pipeline", "schedule"):
        fate = _FATE_IN_SETTINGS
        severity = "warning" if kind == "schedule" or only_close(key, known) is None else "error"
    elif path[-1:] in (["task"], ["retry_settings"]) and kind in (
        "pipeline",
        "pipeline_component",
        "component",
        "other_job",
    ):
        fate = _FATE_IN_TASK
    message = f"unknown key '{shorten(key)}' {where}; {fate}"
    # A key that is present already is not what was meant, unless that is to be replaced.
    entries = document.node_at(path).entries
    replaces = entries[key].key.file == COMMAND_LINE
    free = [name for name in known if replaces or name not in entries]
    synonym = _SYNONYMS_OF_KEYS.get(key)
    hint = f"Did you mean '{synonym}'?" if synonym in free else ""
    if kind == "compute" and key in _TIER_WORDS and "tier" in free:
        hint = "Write `tier: low_priority`, or `tier: dedicated`."
    if kind == "environment" and key == "type":
        hint = "Remove it: `image`, `build` and `conda_file` say what an environment is."
    home = _HOMES_OF_KEYS.get(key)
    if home in known or {home, *path[-1:]} == {"distribution", "resources"}:
        hint = f"It belongs under `{home}`."
    if (invisible := invisible_indent(key)) is not None:
        hint = f"It begins with the invisible character {invisible}: remove it, or write spaces."
    hint = hint or did_you_mean(key, free)
    meant = only_close(key, free)
    span = document.key_span([*path, key])
    return UNKNOWN_KEY.at(span, message, hint, replacement=meant, severity=severity)


def _is_parameter_output(path: list[str | int], document: Document, kind: Kind) -> bool:
    """Return whether a place is a parameter output of a component, where the client drops any unknown key."""
    if kind not in ("component", "pipeline_component") or len(path) != 2 or path[0] != "outputs":
        return False
    stated = document.node_at(path).get("type")
    return stated is not None and stated.text in PARAMETER_TYPES


# What other tools call the tier of a cluster.
_TIER_WORDS = frozenset({"priority", "vm_priority"})

# What people write into components that stood alone as jobs before.
_KEYS_OF_JOBS = frozenset(
    {"compute", "experiment_name", "limits", "services", "identity", "queue_settings", "environment_variables"}
)


def _writable(holder: Mapping[str, Any]) -> list[str]:
    """Return the keys that people write: not those that Azure ML adds to the files that it exports."""
    keys = holder.get("properties", {}).items()
    return [key for key, schema in keys if key != "$schema" and not schema.get("readOnly")]


def _missing_key(key: str, path: list[str | int], holder: Mapping[str, Any], document: Document) -> Diagnostic:
    node = document.node_at(path)
    where = f"'{path[-1]}' has no '{key}'" if path else f"there is no '{key}'"
    known = {*holder.get("properties", {}), *holder.get("required", ())}
    typo = next(
        (name for name in islice(node.entries, _MOST_HINTS) if name not in known and only_close(name, [key])), None
    )
    return MISSING_KEY.at(
        node.entries[typo].key.span if typo is not None else _head_span(path, document),
        where,
        hint=f"Did you mean '{key}'?" if typo is not None else _example(key, holder),
        related=_typos_for([key], node, holder),
    )


def _typos_for(missing: list[str], node: Node, holder: Mapping[str, Any]) -> tuple[Related, ...]:
    """Return the unknown keys of a mapping that probably stand for a missing one."""
    known = _writable(holder)
    return tuple(
        Related(entry.key.span, f"'{shorten(name)}' is probably meant to be that")
        for name, entry in islice(node.entries.items(), _MOST_HINTS)
        if name not in known and closest(name, known) in missing
    )


def _head_span(path: list[str | int], document: Document) -> Span:
    """Return where a mapping is named; for the whole document, its first key."""
    if path:
        return document.key_span(path)
    first = next(iter(document.root.entries.values()), None)
    return first.key.span if first is not None else document.root.span


def _example(key: str, holder: Mapping[str, Any]) -> str:
    options = _choices(holder.get("properties", {}).get(key, {}))
    if len(options) < 2:
        return f"Write `{key}: …`."
    return f"Write `{key}: {options[0]}`, or one of {', '.join(map(str, options[1:]))}."


def _bad_names(path: list[str | int], rule: Mapping[str, Any], document: Document) -> Iterator[Diagnostic]:
    """Yield all malformed names of a mapping; the validator reports only the first."""
    form = re.compile(rule["pattern"])
    for name, entry in document.node_at(path).entries.items():
        if form.search(name) is None:
            message = f"'{shorten(name)}' is not a valid name: {rule[_EXPECTED]}"
            lowered = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name).lower()
            hint = f"Did you mean '{'_' if lowered[:1].isdigit() else ''}{lowered}'?"
            yield BAD_TEXT.at(entry.key.span, message, hint=hint, severity=rule.get(_SEVERITY))


_RULES_IN_SCHEMAS = {rule.id: rule for rule in (UNKNOWN_KEY, WRONG_TYPE, NOT_A_CHOICE, BAD_ASSET_NAME, BAD_REFERENCE)}
_SYNONYMS_OF_KEYS: dict[str, str] = word_tables("spec")["synonyms_of_keys"]["words"]
_HOMES_OF_KEYS: dict[str, str] = word_tables("spec")["homes_of_keys"]["words"]
_SYNONYMS: dict[str, str] = word_tables("spec")["synonyms_of_types"]["words"]
_TYPE_WORDS: dict[str, str] = word_tables("spec")["types"]["words"]
_BOUND_WORDS: dict[str, str] = word_tables("spec")["bounds"]["words"]
# Others are of WRONG_TYPE.
_RULE_OF_KEYWORD = {
    **dict.fromkeys(("enum", "const"), NOT_A_CHOICE),
    **dict.fromkeys(_BOUND_WORDS, OUT_OF_BOUNDS),
    **dict.fromkeys(("minItems", "minProperties", "minLength"), MISSING_KEY),
    "pattern": BAD_TEXT,
}


def _wrong_value(
    keyword: str, detail: Any, path: list[str | int], holder: Mapping[str, Any], document: Document
) -> Diagnostic:
    node = document.node_at(path)
    name = _name_of(path)
    rule = _RULE_OF_KEYWORD.get(keyword, WRONG_TYPE)
    span, hint, replacement = node.span, "", None
    related: tuple[Related, ...] = ()
    found = describe(node.data).removeprefix("the text ")
    expected = holder.get(_EXPECTED, "")
    options = _choices(holder)
    if keyword in ("enum", "anyOf", "const") and options and not isinstance(options[0], bool):
        rule = NOT_A_CHOICE
        known = [str(option) for option in options]
        synonym = _SYNONYMS.get(str(node.text or node.data).lower(), "")
        replacement = synonym if synonym in known else None
        hint = f"Did you mean '{synonym}'?" if replacement else close_match(node.text or str(node.data), known)
        message = f"{name} is {found}; expected {'one of ' * (len(options) > 1)}{', '.join(known)}"
    elif keyword == "anyOf" and all(branch.keys() == {"required"} for branch in holder["anyOf"]):
        rule, span = MISSING_KEY, _head_span(path, document)
        message = f"{expected}, and {'this' if not path else name} has neither"
        wanted = [branch["required"][0] for branch in holder["anyOf"]]
        hint = next((h for key in node.entries if (h := close_match(key, wanted))), "")
        related = _typos_for(wanted, node, holder)
    elif keyword in _BOUND_WORDS:
        message = f"{name} is {node.text or node.data}; it is {_BOUND_WORDS[keyword].format(limit=detail)}"
    elif keyword in ("minItems", "minProperties", "minLength"):
        span, message = _head_span(path, document), f"{name} is empty"
    elif expected and keyword == "not":
        span, message = document.key_span(path), f"{name} is {expected}"
    elif expected or keyword == "type":
        expected = expected or " or ".join(_TYPE_WORDS[word] for word in detail)
        message = f"{name} is {found}; expected {expected}"
        if rule == WRONG_TYPE and node.data is None and path:
            rule, span, message = MISSING_KEY, document.key_span(path), f"{name} has nothing beneath it"
        elif keyword == "type" and isinstance(node.data, (bool, int, float)) and "string" in detail:
            replacement = f'"{node.text}"'
            hint = f"Quote it: {replacement}."
    else:
        message = f"{name} cannot be {describe(node.data)}"
    if path[-1:] == ["shm_size"] and node.text.isdecimal():
        hint = f"Write {node.text}g, if these are gigabytes."
    if _RULE in holder and rule is not MISSING_KEY:
        rule = _RULES_IN_SCHEMAS[holder[_RULE]]
    if rule is BAD_REFERENCE and _NAME_AND_VERSION.fullmatch(node.text):
        hint = f"Did you mean 'azureml:{node.text}'?"
    # What the client accepts anyway is another string, never a list or mapping in its place.
    is_collection = keyword == "type" and isinstance(node.data, (dict, list))
    severity: Severity | None = "error" if is_collection else holder.get(_SEVERITY)
    return rule.at(span, message, hint, related, replacement, severity)


def _name_of(path: list[str | int]) -> str:
    if not path:
        return "the file"
    last = path[-1]
    if isinstance(last, int):
        return f"item {last + 1} of '{path[-2]}'" if len(path) > 1 else f"item {last + 1}"
    return f"'{shorten(last)}'"


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values of an `enum`, or of that in the first branch of an `anyOf` (others differ only in case)."""
    branches = [schema, *schema.get("anyOf", [])[:1]]
    return next((list(branch["enum"]) for branch in branches if "enum" in branch), [])
