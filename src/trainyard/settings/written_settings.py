"""Settings as people write them: which keys a settings file may have, and how what stands there becomes a value.

Flags, settings files and overrides are read alike, by the setting's type. A value is a string, or what YAML makes
of it together with that text: `3e-4`, which YAML 1.1 takes for a string, is a number where the setting is one, and
`1.10` keeps its zero where the setting is a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from trainyard.settings.regex import regex
from trainyard.settings.step_fields import StepField
from trainyard.settings.suggestions import closest

SETTINGS = "settings"
OVERRIDES = "overrides"
MIXED_DATASETS = ("data", "data_2", "data_3", "data_4")
"""The inputs of a training whose samples are mixed, in the order of their weights."""

SettingValue = str | int | float | bool

_TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
_FALSE_WORDS = frozenset({"false", "no", "off", "0"})
_JSON_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = regex(r"[-+]?[0-9]+")
_FLOAT = regex(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_EXPECTED = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
_EXPECTED_CANDIDATE = "expected 'config=NAME micro_batch_size=N activation_checkpointing=true|false'"


def has_settings_file(fields: Iterable[StepField]) -> bool:
    """Return whether a step with these fields reads a settings file."""
    return any(field.name == SETTINGS and field.kind == "input" for field in fields)


def keys_of_file(own: Iterable[StepField], of_task: Iterable[StepField] = ()) -> dict[str, StepField]:
    """Return the keys that the settings file of a step may have: its settings and those of its task."""
    return {field.name: field for field in (*own, *of_task) if field.kind == "parameter" and field.name != OVERRIDES}


def why_unknown(key: str, step: str, own: Sequence[StepField], known: Collection[str], task: str | None) -> str:
    """Return why a settings file of a step cannot have a key that is not among the known ones, and what to do."""
    if any(field.name == key for field in own):
        return f"{key} is not in settings files; give it with --{key.replace('_', '-')}, or bind it in the pipeline"
    if task is not None and (tasks := tasks_with(key)):
        return f"unknown key {key!r} for the task {task}; it belongs to {_in_words(tasks)}"
    if steps := steps_with(key):
        return f"unknown key {key!r} for {step}; it belongs to {_in_words(steps)}"
    name, colon, value = key.partition(":")
    if colon and name in known:
        return f"unknown key {key!r}; write a space after the colon: {name}: {value}"
    meant = closest(key, known)
    return f"unknown key {key!r}" + (f"; did you mean {meant}?" if meant else "")


def tasks_with(setting: str) -> list[str]:
    """Return the built-in tasks that have a setting."""
    from trainyard.settings.steps.tasks import BUILT_IN_TASKS
    from trainyard.settings.task_fields import task_fields

    return [name for name in BUILT_IN_TASKS if any(field.name == setting for field in task_fields(name))]


def steps_with(setting: str) -> list[str]:
    """Return the steps whose settings file may have a key."""
    from trainyard.settings.task_fields import built_in_step_fields, steps_with_settings_file

    return [step for step in steps_with_settings_file() if setting in keys_of_file(built_in_step_fields(step) or ())]


def _in_words(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


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


def read_weights(text: str, datasets: int) -> tuple[Fraction, ...]:
    """Return a weight for each of so many datasets. ValueError says what is wrong, beginning with the text."""
    try:
        weights = tuple(Fraction(part.strip()) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        weights = ()
    if not weights or any(weight <= 0 for weight in weights):
        raise ValueError(f"{text!r}: expected a positive number for each dataset, such as 3,1")
    if datasets == 1:
        raise ValueError(f"{text}: there is only one dataset; name others as data_2 to data_4")
    if len(weights) != datasets:
        raise ValueError(f"{text}: {len(weights)} weights for {datasets} datasets")
    return weights


@dataclass(frozen=True)
class Candidate:
    """One choice of DeepSpeed's configuration (by the name of its file), micro-batch and activation checkpointing."""

    config: str
    micro_batch_size: int
    activation_checkpointing: bool

    def __str__(self) -> str:
        checkpointing = str(self.activation_checkpointing).lower()
        return f"config={self.config} micro_batch_size={self.micro_batch_size} activation_checkpointing={checkpointing}"


def read_candidate(text: str) -> Candidate:
    """Return the candidate of a string as `str` writes it. ValueError says what is expected."""
    pairs = dict(word.partition("=")[::2] for word in text.split())
    config, size, checkpointing = (pairs.get(name, "") for name in Candidate.__dataclass_fields__)
    is_complete = len(pairs) == len(text.split()) == len(Candidate.__dataclass_fields__)
    if not (is_complete and config and size.isdecimal() and int(size) and checkpointing in ("true", "false")):
        raise ValueError(f"not a candidate: {text!r}; {_EXPECTED_CANDIDATE}")
    return Candidate(config, int(size), checkpointing == "true")
