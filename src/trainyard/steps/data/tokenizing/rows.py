"""How a split's tokens make rows of equal length, in shards that are the same whoever writes them.

A split's tokens form one stream: an end-of-text token, then the documents in the order of the files. Row i is
stream[i·L : i·L + L + 1] with L the sequence length, so that each token but the first is predicted exactly once. What
remains at the end makes a padded row; a training split leaves it out, so that all of its rows are full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SPLITS = ("train", "validation", "test")
TOKENS_ARRAY = "tokens"

TOKENS_AT_ONCE = 1 << 19
"""About how many tokens of a shard are in memory at a time."""

Tokens = npt.NDArray[Any]


@dataclass(frozen=True)
class SplitRows:
    """How the stream of one split makes rows; `bounds` are where each rank's tokens begin, and the stream's end."""

    name: str
    bounds: tuple[int, ...]
    sequence_length: int
    shard_samples: int

    @property
    def tokens(self) -> int:
        """The tokens of the stream, including the first."""
        return self.bounds[-1]

    @property
    def rows(self) -> int:
        """The rows of the split."""
        whole, rest = divmod(max(0, self.tokens - 1), self.sequence_length)
        return whole + (rest > 0 and self.name != "train")

    @property
    def predicted_tokens(self) -> int:
        """The tokens that are predicted in some row."""
        return min(self.rows * self.sequence_length, self.tokens - 1)

    def shards(self) -> Iterator[TokenShard]:
        """Yield the shards that hold the rows."""
        for number, first in enumerate(range(0, self.rows, self.shard_samples)):
            yield TokenShard(self, number, first, min(self.rows, first + self.shard_samples))


@dataclass(frozen=True)
class TokenShard:
    """The rows first_row…stop_row-1 of a split, written by the rank that has the first token."""

    split: SplitRows
    number: int
    first_row: int
    stop_row: int

    def token_bounds(self, first_row: int, stop_row: int) -> tuple[int, int]:
        """Return the start and stop of the rows' tokens in the stream."""
        length = self.split.sequence_length
        return first_row * length, min(stop_row * length + 1, self.split.tokens)

    def parts(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return which ranks have the tokens start…stop-1, as (rank, start, stop) counted within that rank's tokens."""
        bounds = self.split.bounds
        return [
            (rank, max(start, bounds[rank]) - bounds[rank], min(stop, bounds[rank + 1]) - bounds[rank])
            for rank in range(len(bounds) - 1)
            if max(start, bounds[rank]) < min(stop, bounds[rank + 1])
        ]

    @property
    def ranks(self) -> list[int]:
        """The ranks that have its tokens; the first of them writes it."""
        return [rank for rank, _, _ in self.parts(*self.token_bounds(self.first_row, self.stop_row))]


def rows_of(tokens: Tokens, rows: int, length: int, padding: int) -> Tokens:
    """Return rows of length + 1, padded at the end; each begins with the last token of the one before."""
    fill = np.full(rows * length + 1 - len(tokens), padding, dtype=tokens.dtype)
    filled = np.concatenate([tokens, fill])
    return np.concatenate([filled[:-1].reshape(-1, length), filled[length::length, None]], axis=1)
