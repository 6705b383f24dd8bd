"""Values in templates: each remembers where it was written, and becomes YAML text that reads back as the same value.

So a rendered line can name the line of the profile behind it. YAML is version 1.1, which Azure ML reads.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterable
from typing import Any

from trainyard.spec.diagnostic import Span

_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+@-]*(:[A-Za-z0-9_./+@-]+)*|[1-9][0-9]*[A-Za-z]+")
_PLAIN_SENTENCE = re.compile(r"[A-Za-z](?:(?!: | #)[\x20-\x7e])*[A-Za-z0-9.)`]")
# Characters that YAML rejects unescaped, or takes for a line break.
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
# Words that YAML 1.1 takes for booleans or null.
_NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class WrittenText(str):
    """A string that knows where it was written."""

    origin: Span


class WrittenInteger(int):
    """A whole number that knows where it was written; products keep that."""

    origin: Span

    def __mul__(self, other: int) -> int:
        return written(int(self) * int(other), self.origin)  # type: ignore[no-any-return]

    __rmul__ = __mul__


class WrittenNumber(float):
    """A number that knows where it was written."""

    origin: Span


_TYPES: dict[type, Any] = {str: WrittenText, int: WrittenInteger, float: WrittenNumber}


def written(value: Any, origin: Span | None) -> Any:
    """Return a value with its origin. Booleans and None, which cannot be subclassed, stay as they are."""
    kind = _TYPES.get(type(value))
    if origin is None or kind is None:
        return value
    marked = kind(value)
    marked.origin = origin
    return marked


def origin_of(value: Any) -> Span | None:
    """Return where a value was written, if it knows."""
    return value.origin if isinstance(value, (WrittenText, WrittenInteger, WrittenNumber)) else None


def as_written(text: str, original: object) -> str:
    """Return text that was made of a value, with the origin of that."""
    marked: str = written(text, origin_of(original))
    return marked


def yaml_scalar(value: object) -> str:
    """Return a scalar as YAML: quoted only if necessary, floats never in a form that YAML 1.1 takes for text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(int(value))
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT and not re.match(r"\.[0-9inINN]", text):
        return text
    if '"' in text and "'" not in text and text.isascii() and text.isprintable():
        return f"'{text}'"
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", json.dumps(text, ensure_ascii=False))


def yaml_sentence(text: str) -> str:
    """Return a string for people as YAML, without quotes where it needs none."""
    is_plain = _PLAIN_SENTENCE.fullmatch(text) and text.lower() not in _NOT_TEXT
    return text if is_plain else yaml_scalar(text)


def yaml_list(values: Iterable[object]) -> str:
    """Return a list on one line: `[fp32, bf16]`."""
    return f"[{', '.join(map(yaml_scalar, values))}]"


def wrap(text: str, width: int = 100) -> str:
    """Return prose broken into lines, for folded blocks and comments."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def _float(value: float) -> str:
    """Return a float as YAML 1.1 reads it: `1e-05` would be text, `1.0e-05` is a number, `inf` begins with a dot."""
    if not math.isfinite(value):
        return repr(float(value)).replace("inf", ".inf").replace("nan", ".nan")
    text = repr(float(value))
    mantissa, exponent_mark, exponent = text.partition("e")
    if exponent_mark and "." not in mantissa:
        mantissa += ".0"
    return mantissa + exponent_mark + exponent
