"""The JSON Schemas of a project, for editors: each a file that needs no other, short enough to be reviewed.

Those of `schemas/` share `common.schema.json`, of which each gets here what it refers to, and tell the linter which
rule a mistake breaks, which editors do not show.

"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.resources import schema_file

_COMMON = "common.schema.json#/$defs/"
_OWN = "#/$defs/"
_FOR_LINT = "x-"
_LONGEST_LINE = 4000
"""Characters. Schemas are read by editors; people see that one has changed, and the size of the change."""


def bundled_schema(name: str) -> str:
    """Return the text of a schema that refers to no other file."""
    schema = _read(name)
    if _COMMON in json.dumps(schema):
        common = _read("common")["$defs"]
        schema = {**schema, "$defs": {**schema.get("$defs", {}), **_reachable(schema, common)}}
    return _text(_for_editors(schema)) + "\n"


def _read(name: str) -> dict[str, Any]:
    return dict(json.loads(schema_file(name).read_text(encoding="utf-8")))


def _reachable(schema: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shared definitions that a schema refers to, and those that these refer to, sorted by name."""
    reached: dict[str, Any] = {}
    pending = [schema]
    while pending:
        for address in _references(pending.pop()):
            name = address.partition(_OWN)[2].partition("/")[0]
            if name in common and name not in reached:
                reached[name] = common[name]
                pending.append(common[name])
    return dict(sorted(reached.items()))


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _references(item)


def _for_editors(value: Any) -> Any:
    """Return a part of a schema without what only the linter reads, and with its references within the file."""
    if isinstance(value, list):
        return [_for_editors(item) for item in value]
    if isinstance(value, str):
        return value.replace(_COMMON, _OWN)
    if not isinstance(value, dict):
        return value
    return {key: _for_editors(item) for key, item in value.items() if not key.startswith(_FOR_LINT)}


def _text(value: Any, depth: int = 0) -> str:
    """Return JSON on one line, or with a line for each part where that line would be too long."""
    on_one_line = json.dumps(value, ensure_ascii=False)
    if len(on_one_line) <= _LONGEST_LINE or not isinstance(value, (dict, list)):
        return on_one_line
    indent = " " * (depth + 1)
    if isinstance(value, dict):
        parts = [f"{indent}{json.dumps(key)}: {_text(item, depth + 1)}" for key, item in value.items()]
    else:
        parts = [indent + _text(item, depth + 1) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(parts) + f"\n{' ' * depth}{closing}"
