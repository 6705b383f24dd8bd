"""The values of `--set KEY=VALUE` and `--apply FILE` for a profile: read as YAML, and written as arguments again."""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError
from trainyard.render.values import yaml_scalar
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.documents import parse_document, read_document, require_faultless
from trainyard.spec.set_arguments import COMMAND_LINE, printable, split_settings

# Control characters, halves of characters (bytes that are not UTF-8), separators of lines and of paragraphs.
_NOT_ON_ONE_LINE = frozenset({"Cc", "Cs", "Zl", "Zp"})


def read_settings(texts: Iterable[str]) -> dict[str, object]:
    """Return settings by their dotted keys, from strings of the form KEY=VALUE; of a key given twice, the last.

    Values are read as the profiles' own YAML is: `nodes=4` is a number, a date is text, and nothing after the `=` is
    null. Raises `UsageError` for a string that is not KEY=VALUE, and a value that is not YAML or not on one line.
    """
    return {key: _read_value(key, text) for key, text in split_settings(texts, "nodes=4").items()}


def read_applied(file: Path) -> dict[str, object]:
    """Return the settings of a file with keys of a profile, by their dotted keys, as `--set` gives them.

    Raises `SpecError` for a file that is not a YAML mapping, and `UsageError` for one without settings.
    """
    from trainyard.settings.deepspeed_configuration import leaves_of

    if not file.exists():
        raise UsageError(f"--apply {file}: no such file")
    settings: dict[str, object] = dict(leaves_of(require_faultless(read_document(file)).data))
    if not settings:
        raise UsageError(f"--apply {file}: no settings; expected keys of a profile, such as `nodes: 4`")
    for key, value in settings.items():
        _refuse_what_is_not_one_line(key, [key, *_texts_in(value)])
    return settings


def as_arguments(settings: Mapping[str, object]) -> str:
    """Return settings as they are typed after a command, each after a space; empty without settings."""
    return "".join(f" --set {as_argument(key, value)}" for key, value in settings.items())


def as_argument(key: str, value: object) -> str:
    """Return KEY=VALUE as a shell takes it and `read_settings` reads it again; without quotes within where it can."""
    text = value if isinstance(value, str) and _reads_as_itself(value) else _flow(value)
    return shlex.quote(f"{key}={text}")


def _read_value(key: str, text: str) -> object:
    _refuse_what_is_not_one_line(key, [key, text])
    if not text.strip():
        return None
    try:
        document = parse_document(COMMAND_LINE, text)
    except SpecError as error:
        problems = error.diagnostics
    else:
        _refuse_what_is_not_one_line(key, _texts_in(document.data))
        if not document.problems:
            return document.data
        problems = tuple(document.problems)
    quoted = shlex.quote(f"{key}={yaml_scalar(text)}")
    raise UsageError(f"--set {key}={text}: {problems[0].message}. If it is text, quote it: --set {quoted}")


def _refuse_what_is_not_one_line(key: str, texts: Iterable[str]) -> None:
    """Values appear in the headers of rendered files and in messages: on one line, and printable."""
    found = next((c for text in texts for c in text if unicodedata.category(c) in _NOT_ON_ONE_LINE), None)
    if found is not None:
        raise UsageError(f"--set {printable(key)}: the value holds {found!a}; expected one line of printable text.")


def _texts_in(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield key
            yield from _texts_in(value)
    elif isinstance(data, list):
        for value in data:
            yield from _texts_in(value)


def _reads_as_itself(text: str) -> bool:
    try:
        return bool(parse_document(COMMAND_LINE, text).data == text)
    except SpecError:
        return False


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{yaml_scalar(key)}: {_flow(each)}' for key, each in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    return yaml_scalar(value)
