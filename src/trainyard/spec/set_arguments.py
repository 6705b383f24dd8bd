"""`--set KEY=VALUE`, wherever it is given: split the same way, and named the same way in messages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trainyard.errors import UsageError
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import closest

COMMAND_LINE = Path("--set")
"""The file that the span of a value from the command line names."""


def split_settings(texts: Iterable[str], example: str) -> dict[str, str]:
    """Return values by their dotted keys, from strings of the form KEY=VALUE; of a key given twice, the last.

    Raises UsageError, with the example, for a string of another form.
    """
    settings: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {printable(text)}: expected KEY=VALUE, such as {example}.")
        settings[key.strip()] = value
    return settings


def names_input(key: str) -> bool:
    """Return whether a key is of a pipeline or its jobs, or is meant to be; all others are of a profile."""
    scope = key.partition(".")[0]
    return "." in key and closest(scope, ("inputs", "jobs")) is not None


_NEXT_SETTING = regex(r"[,;\s]((?:inputs|jobs)\.[\w.]+=.*)")


def several_in_one(value: str) -> str:
    """Return a hint for a value that goes on with another setting, and an empty string for any other value."""
    found = _NEXT_SETTING.search(value)
    return f"Each setting has its own option: … --set {found[1]}" if found else ""


def printable(text: str) -> str:
    """Return a string as it can be shown in a message: escaped where a character of it cannot."""
    return text if text.isprintable() else ascii(text)
