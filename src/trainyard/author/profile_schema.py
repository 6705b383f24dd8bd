"""A profile held to `schemas/profile.schema.json`, with findings at the lines that people wrote."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from trainyard.author import rules
from trainyard.author.layers import Layers
from trainyard.foundation.suggestions import did_you_mean
from trainyard.resources import schema_file
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import describe

_TYPE_NAMES = {
    "object": "keys with values",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}


def check_against_schema(layers: Layers) -> list[Diagnostic]:
    """Every way in which a profile is not as its schema says, in the order of the file."""
    import jsonschema_rs

    validator = jsonschema_rs.validator_for(profile_schema())
    problems = [problem for error in validator.iter_errors(layers.data) for problem in _problems(layers, error)]
    return sorted(problems, key=lambda problem: problem.span)


@cache
def profile_schema() -> dict[str, Any]:
    """The schema as it lies in `schemas/`."""
    schema = json.loads(schema_file("profile").read_text(encoding="utf-8"))
    assert isinstance(schema, dict)
    return schema


def _problems(layers: Layers, error: Any) -> list[Diagnostic]:
    path = tuple(str(step) for step in error.instance_path)
    what = f"'{'.'.join(path)}'" if path else "a profile"
    kind = error.kind.name
    schema = _schema_at(error.schema_path[:-1])
    if kind == "additionalProperties":
        known = list(schema["properties"])
        return [
            layers.problem(
                (*path, key),
                rules.PROFILE_KEY,
                f"'{key}' is no key of {'a profile' if not path else what}",
                did_you_mean(key, known),
                at_key=True,
            )
            for key in error.kind.unexpected
        ]
    if kind == "required":
        message = f"{what} lacks '{error.kind.property}'"
        return [layers.problem(path, rules.PROFILE_KEY, message, f"Add: {error.kind.property}: …")]
    found = describe(error.instance)
    described = schema.get("description", "")
    if kind == "type":
        types = schema["type"]
        wanted = " or ".join(_TYPE_NAMES[each] for each in ([types] if isinstance(types, str) else types))
        return [layers.problem(path, rules.PROFILE_VALUE, f"{what} is {wanted}, not {found}", described)]
    if kind == "enum":
        choices = [str(choice) for choice in schema["enum"]]
        hint = did_you_mean(str(error.instance), choices)
        message = f"{what} is one of {', '.join(choices)}, not {found}"
        return [layers.problem(path, rules.PROFILE_VALUE, message, hint)]
    if kind in ("minimum", "maximum"):
        bound = "least" if kind == "minimum" else "most"
        message = f"{what} is {error.instance}; the {bound} it can be is {schema[kind]}"
        return [layers.problem(path, rules.PROFILE_VALUE, message, described)]
    if kind == "minLength":
        return [layers.problem(path, rules.PROFILE_VALUE, f"{what} is empty", described)]
    assert kind == "pattern", kind
    message = f"{what} cannot be {found}: {_PATTERN_WORDS[schema['pattern']]}"
    return [layers.problem(path, rules.PROFILE_VALUE, message, described)]


_PATTERN_WORDS = {
    "^[^\\n]+$": "one line of text is wanted",
    "^[a-z0-9][a-z0-9_-]*$": "a profile's name has small letters, digits, _ and -",
    "^[A-Za-z][A-Za-z0-9-]{1,22}[A-Za-z0-9]$": "Azure takes 3 to 24 letters, digits and hyphens, a letter first",
    "^[1-9][0-9]*[kmgKMG]$": "a whole number with k, m or g behind it is wanted, such as 64g",
    "^azureml:": "an address that begins with azureml: is wanted",
    "^\\{": "a JSON object is wanted, in quotes",
}


def _schema_at(path: list[str | int]) -> dict[str, Any]:
    schema: Any = profile_schema()
    for step in path:
        schema = schema[step]
    assert isinstance(schema, dict)
    return schema
