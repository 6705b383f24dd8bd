"""How a string of a YAML file is spelt in its source: where in the file each character of the value is."""

from __future__ import annotations

import re
from array import array
from typing import NamedTuple

_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
_LINE_END = re.compile("[\r\n\x85\u2028\u2029]")
_ESCAPE = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_BLANK = re.compile(r"\s")
_CHANGED = re.compile(r"""[\n'"\\]""")
# Escapes for blanks, or (a line end) for nothing.
_BLANK_ESCAPES = frozenset("ntvfrNLP_ \t\r\n\x85\u2028\u2029")


class Spelling(NamedTuple):
    """For each character of a value, where its spelling begins and ends in the file; -1 for blanks."""

    begins: array[int]
    ends: array[int]

    @classmethod
    def as_it_is(cls, value: str, begin: int) -> Spelling:
        """The spelling of a value that is written out, without anything folded or escaped."""
        begins = array("q", range(begin, begin + len(value)))
        ends = array("q", range(begin + 1, begin + 1 + len(value)))
        for blank in _BLANK.finditer(value):
            begins[blank.start()] = ends[blank.start()] = -1
        return cls(begins, ends)

    def part(self, start: int, end: int) -> tuple[int, int] | None:
        """Where `value[start:end]` is spelt, without blanks around it; None where it is nothing but blanks."""
        written = [offset for offset in range(start, min(end, len(self.begins))) if self.begins[offset] >= 0]
        return (self.begins[written[0]], self.ends[written[-1]]) if written else None


def spelling_of(value: str, text: str, begin: int, end: int) -> Spelling | None:
    """How a scalar's value is spelt in `text[begin:end]`; None where the two do not agree.

    Understands every style: plain, quoted (with escapes), literal and folded; both are walked once. Blanks, which
    folding makes and unmakes, have no place.
    """
    properties = _PROPERTIES.match(text, begin, end)
    position = properties.end() if properties else begin
    style = text[position : position + 1]
    if style in ("|", ">"):
        header = _LINE_END.search(text, position, end)
        position = header.end() if header else end
    elif style in ("'", '"'):
        position += 1
    if len(value) <= end - position and text.startswith(value, position) and not _CHANGED.search(value):
        return Spelling.as_it_is(value, position)
    begins, ends = array("q", [-1]) * len(value), array("q", [-1]) * len(value)
    for index, character in enumerate(value):
        if character.isspace():
            continue
        position = _next(text, position, end, style)
        finish = _end_of(text, position, style)
        if finish > end or (text[position] != character and (style != '"' or text[position] != "\\")):
            return None
        begins[index], ends[index] = position, finish
        position = finish
    return Spelling(begins, ends)


def _next(text: str, position: int, end: int, style: str) -> int:
    """The first place from here on that spells anything but a blank."""
    while position < end:
        if style == '"' and text[position] == "\\" and text[position + 1] in _BLANK_ESCAPES:
            position += 2
        elif text[position].isspace():
            position += 1
        else:
            break
    return position


def _end_of(text: str, position: int, style: str) -> int:
    """Where the spelling of the character ends that begins here."""
    if style == '"' and (escape := _ESCAPE.match(text, position)) is not None:
        return escape.end()
    return position + 2 if style == "'" and text.startswith("''", position) else position + 1
