"""From what people write to a setting's value: flags, settings files and overrides are read alike, by its type.

What is written is a text, or what YAML makes of it together with that text: `3e-4`, which YAML 1.1 takes for a string,
is a number where the setting is one, and `1.10` keeps its zero where the setting is a string.
"""

from __future__ import annotations

import json
import math
import re

from trainyard.settings.step_fields import StepField
from trainyard.settings.suggestions import closest

SettingValue = str | int | float | bool

_TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
_FALSE_WORDS = frozenset({"false", "no", "off", "0"})
_JSON_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_EXPECTED = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}


def value_of_text(field: StepField, text: str) -> SettingValue:
    """Return the value of a setting from its text. ValueError says what is expected."""
    if field.type == "boolean":
        return _boolean(text)
    if field.type == "string":
        return _choice(field, text)
    return _number(field, text)


def value_of_yaml(field: StepField, data: object, text: str) -> SettingValue | None:
    """Return the value of a setting from what YAML makes of it and its text as typed; None where it is not given.

    A mapping becomes JSON, as on a command line. ValueError says what is expected.
    """
    if isinstance(data, dict) and field.is_mapping:
        return json.dumps(data)
    if isinstance(data, (dict, list)):
        found = "a mapping" if isinstance(data, dict) else "a list"
        raise ValueError(f"expected {_expected(field)}, got {found}")
    if data is None:
        if field.optional:
            return None
        raise ValueError(f"expected {_expected(field)}, got nothing")
    return value_of_text(field, text)


def value_of_plain_scalar(text: str) -> str | int | float | bool | None:
    """Return what an unquoted scalar is, by YAML 1.2: 3e-4 is a number, and of the words only true, false and null."""
    word = text.lower()
    if word in _JSON_WORDS:
        return _JSON_WORDS[word]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _expected(field: StepField) -> str:
    return "a mapping" if field.is_mapping else _EXPECTED[field.type]


def _boolean(text: str) -> bool:
    """Azure ML sends Python's `True` and `False`; people write true, yes, 1."""
    if text.lower() in _TRUE_WORDS:
        return True
    if text.lower() in _FALSE_WORDS:
        return False
    raise ValueError(f"expected true or false, got {text!r}")


def _choice(field: StepField, text: str) -> str:
    if field.choices and text not in field.choices:
        close = closest(text, field.choices)
        meant = f"; did you mean {close}?" if close else ""
        raise ValueError(f"{text!r} is not one of {', '.join(field.choices)}{meant}")
    return text


def _number(field: StepField, text: str) -> int | float:
    try:
        number = int(text) if field.type == "integer" else float(text)
    except ValueError:
        raise ValueError(f"expected {_expected(field)}, got {text!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {text!r}")
    if field.minimum is not None and number < field.minimum:
        raise ValueError(f"{text} is below the minimum of {field.minimum:.10g}")
    if field.maximum is not None and number > field.maximum:
        raise ValueError(f"{text} is above the maximum of {field.maximum:.10g}")
    return number
