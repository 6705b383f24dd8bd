"""Cutting long text into pieces where a tokeniser would cut it anyway."""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE_BYTES = 1 << 15
"""Longer stretches tokenise more slowly, and take memory for every token."""

_LOOK_BACK_BYTES = 1 << 12
_SAFE_CUT = re.compile(rb"[A-Za-z0-9\x80-\xff](?=[ \n][A-Za-z\x80-\xff])")
"""Before a lone space or newline between words: byte-level tokenisers begin a new word there in any case."""

_MOST_CONTINUATION_BYTES = 3


def pieces(data: bytes) -> Iterator[tuple[int, int]]:
    """The bounds of successive pieces of UTF-8 text, none longer than PIECE_BYTES; none at all for no text."""
    start = 0
    while start < len(data):
        stop = cut_before(data, start, start + PIECE_BYTES)
        yield start, stop
        start = stop


def cut_before(data: bytes, start: int, limit: int) -> int:
    """Where best to cut between `start` and `limit`; the text's end when that comes first.

    Between two words near the limit if there is such a place, else at the limit, but never inside a character.
    """
    if limit >= len(data):
        return len(data)
    safe = [found.end() for found in _SAFE_CUT.finditer(data, max(start, limit - _LOOK_BACK_BYTES), limit)]
    if safe:
        return safe[-1]
    for stop in range(limit, max(start, limit - _MOST_CONTINUATION_BYTES - 1), -1):
        if data[stop] & 0xC0 != 0x80:
            return stop
    return limit
