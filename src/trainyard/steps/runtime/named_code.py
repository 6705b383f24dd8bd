"""A user's own code: what `package.module:name` names, and its arguments as JSON."""

from __future__ import annotations

import importlib
from typing import Any

from trainyard.steps.runtime.errors import SetupError, StepError
from trainyard.steps.runtime.files import parse_json


def import_named(flag: str, path: str, kind: str) -> Any:
    """Return what `package.module:name` names. SetupError, with the flag, says why there is no such `kind`."""
    module_name, colon, name = path.partition(":")
    if not (colon and all(part.isidentifier() for part in (*module_name.split("."), name))):
        raise SetupError(f"{flag} {path}: expected package.module:{kind}")
    try:
        module = importlib.import_module(module_name)  # may import: not trainyard
    except ModuleNotFoundError as failure:
        raise SetupError(f"{flag} {path}: the module {failure.name} is missing") from None
    found = getattr(module, name, None)
    if found is None:
        raise SetupError(f"{flag} {path}: {module_name} has no {kind.lower()} {name}")
    return found


def arguments_from_json(flag: str, text: str | None) -> dict[str, Any]:
    """Return named arguments that were given as a JSON object. SetupError, with the flag, for anything else."""
    if text is None:
        return {}
    try:
        found = parse_json(text, f"{flag} {text}")
    except StepError as mistake:
        raise SetupError(str(mistake)) from None
    if not isinstance(found, dict):
        raise SetupError(f'{flag} must be a JSON object such as {{"hidden_size": 64}}; found {text}')
    return found
