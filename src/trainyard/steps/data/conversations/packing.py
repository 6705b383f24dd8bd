"""Putting documents into rows of equal length, each into the fullest row that has room for it."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.conversations.rendering import TokenizedConversation

_OPEN_ROWS = 1024
_LEAST_TOKENS = 2
"""Shorter documents have nothing to predict."""

Row = list[TokenizedConversation]


class RowPacker:
    """Packs documents in the order they come; only so many rows are held at a time. Those of a pair stay together."""

    def __init__(self, length: int, *, packing: bool) -> None:
        self._length, self._packing = length, packing
        self._rooms: list[tuple[int, int]] = []
        """How many tokens each open row has room for, and its number; sorted."""
        self._rows: dict[int, Row] = {}
        self._opened = 0

    def add(self, documents: Sequence[TokenizedConversation]) -> Iterator[Row]:
        """Put documents into one row. Yield a row if one is full, or if too many are open: the fullest."""
        size = sum(len(document.tokens) for document in documents)
        assert size <= self._length
        if not self._packing:
            yield [*documents]
            return
        place = bisect.bisect_left(self._rooms, (size, -1))
        if place < len(self._rooms):
            room, number = self._rooms.pop(place)
        else:
            room, number = self._length, self._opened
            self._opened += 1
        self._rows.setdefault(number, []).extend(documents)
        if room - size < _LEAST_TOKENS:
            yield self._rows.pop(number)
            return
        bisect.insort(self._rooms, (room - size, number))
        if len(self._rooms) > _OPEN_ROWS:
            yield self._rows.pop(self._rooms.pop(0)[1])

    def finish(self) -> Iterator[Row]:
        """Yield the rows that are left, in the order in which they were opened."""
        yield from self._rows.values()


def arrays_of(row: Row, length: int, padding: int, dtype: str, *, numbered: bool) -> dict[str, npt.NDArray[Any]]:
    """Return a row's arrays, each [1, length]: its tokens, which are answers, and the number of each one's document.

    Documents count from 1; padding has the number 0. The first token of a document is not predicted, so it is not an
    answer. Rows of one document need no numbers.
    """
    tokens = np.full((1, length), padding, dtype=dtype)
    answers = np.zeros((1, length), dtype=np.bool_)
    documents = np.zeros((1, length), dtype=np.uint16)
    start = 0
    for number, document in enumerate(row, start=1):
        stop = start + len(document.tokens)
        tokens[0, start:stop] = document.tokens
        answers[0, start + 1 : stop] = document.is_answer[1:]
        documents[0, start:stop] = number
        start = stop
    arrays = {"tokens": tokens, "answers": answers}
    return {**arrays, "documents": documents} if numbered else arrays
