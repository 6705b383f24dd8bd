"""What a JSON Schema says about a place of a document: the keys it may have, the values, and their descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trainyard.spec.file_kinds import Kind
from trainyard.spec.schema_checks import bundled_schema, schema_of

_BRANCHES = ("allOf", "anyOf", "oneOf")
_CONDITIONAL = ("then", "else", "if")


def keys_at(kind: Kind, path: Sequence[str | int]) -> dict[str, str]:
    """Return the keys that a mapping at a path may have, with their descriptions."""
    found: dict[str, str] = {}
    for schema, root in _schemas_at(kind, path):
        for name, property_schema in schema.get("properties", {}).items():
            found[name] = found.get(name) or _description(property_schema, root)
    return found


def values_at(kind: Kind, path: Sequence[str | int]) -> list[str]:
    """Return the values that the schema lists for a place; booleans as YAML writes them."""
    found: dict[str, None] = {}
    for schema, _ in _schemas_at(kind, path):
        options = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
        if schema.get("type") == "boolean":
            options += [True, False]
        for option in options:
            if isinstance(option, (bool, int, float, str)):
                found.setdefault(str(option).lower() if isinstance(option, bool) else str(option))
    return list(found)


def description_at(kind: Kind, path: Sequence[str | int]) -> str:
    """Return what the schema says about a key; empty if it says nothing."""
    for schema, root in _schemas_at(kind, path):
        text = _description(schema, root)
        if text:
            return text
    return ""


def _schemas_at(kind: Kind, path: Sequence[str | int]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every schema that may apply to a place, each with the root that its references are relative to."""
    name = schema_of(kind)
    if name is None:
        return []
    root = bundled_schema(name)
    found = list(_alternatives(root, root))
    for step in path:
        found = [
            alternative
            for schema in found
            for child in _children(schema, step)
            for alternative in _alternatives(child, root)
        ]
    return [(schema, root) for schema in found]


def _children(schema: dict[str, Any], step: str | int) -> Iterator[dict[str, Any]]:
    if isinstance(step, int):
        child = schema.get("items")
    else:
        child = schema.get("properties", {}).get(step)
        if child is None:
            child = schema.get("additionalProperties")
    if isinstance(child, dict):
        yield child


def _alternatives(schema: dict[str, Any], root: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """A schema and all that it is put together from."""
    if depth > 20:
        return
    yield schema
    reference = schema.get("$ref")
    if isinstance(reference, str):
        yield from _alternatives(_resolved(reference, root), root, depth + 1)
    for key in _BRANCHES:
        for branch in schema.get(key, ()):
            if isinstance(branch, dict):
                yield from _alternatives(branch, root, depth + 1)
    for key in _CONDITIONAL:
        branch = schema.get(key)
        if isinstance(branch, dict) and key != "if":
            yield from _alternatives(branch, root, depth + 1)


def _resolved(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found.get(step, {}) if step else found
    return found if isinstance(found, dict) else {}


def _description(schema: Any, root: dict[str, Any]) -> str:
    if not isinstance(schema, dict):
        return ""
    return next((str(each["description"]) for each in _alternatives(schema, root) if each.get("description")), "")
