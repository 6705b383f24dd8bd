"""Values in templates: each remembers where it was written, and becomes YAML text that reads back as the same value.

A rendered line can so name the line of the profile behind it. YAML is version 1.1 here: that is what Azure ML reads.
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
# What YAML refuses as it is, or takes for a line's end.
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
# Words that YAML 1.1 takes for booleans and nothing, and what begins like a number.
_NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class WrittenText(str):
    """A text with the place it was written at."""

    origin: Span


class WrittenInteger(int):
    """A whole number with the place it was written at; products keep it."""

    origin: Span

    def __mul__(self, other: int) -> int:
        return written(int(self) * int(other), self.origin)  # type: ignore[no-any-return]

    __rmul__ = __mul__


class WrittenNumber(float):
    """A number with the place it was written at."""

    origin: Span


_TYPES: dict[type, Any] = {str: WrittenText, int: WrittenInteger, float: WrittenNumber}


def written(value: Any, origin: Span | None) -> Any:
    """The value with its origin; booleans and None, which Python lets nobody extend, and unknown origins stay bare."""
    kind = _TYPES.get(type(value))
    if origin is None or kind is None:
        return value
    marked = kind(value)
    marked.origin = origin
    return marked


def origin_of(value: Any) -> Span | None:
    """Where a value was written, when it knows."""
    return value.origin if isinstance(value, (WrittenText, WrittenInteger, WrittenNumber)) else None


def yaml_scalar(value: object) -> str:
    """A scalar as YAML: quoted only where it must be, floats never in a form that YAML 1.1 takes for text."""
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


def yaml_list(values: Iterable[object]) -> str:
    """A list on one line: `[fp32, bf16]`."""
    return f"[{', '.join(map(yaml_scalar, values))}]"


def wrap(text: str, width: int = 100) -> str:
    """Prose broken into lines, for folded blocks and comments."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


def _float(value: float) -> str:
    """`1e-05` is text in YAML 1.1, `1.0e-05` a number; whole numbers keep their `.0`, and `inf` begins with a dot."""
    if not math.isfinite(value):
        return repr(float(value)).replace("inf", ".inf").replace("nan", ".nan")
    text = repr(float(value))
    mantissa, exponent_mark, exponent = text.partition("e")
    if exponent_mark and "." not in mantissa:
        mantissa += ".0"
    return mantissa + exponent_mark + exponent
