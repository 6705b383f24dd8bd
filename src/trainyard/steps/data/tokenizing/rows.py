"""Packing every rank's tokens into rows of equal length, in shards that are the same for any number of ranks.

A split's tokens form one stream: an end-of-text token, then the documents in the order of the files. Row i is
stream[i·L : i·L + L + 1] with L the sequence length, so that each token but the first is predicted exactly once. What
remains at the end makes a padded row; a training split leaves it out, so that all of its rows are full.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from trainyard.foundation.files import os_errors_name
from trainyard.steps.data.dataset.manifest import Split
from trainyard.steps.data.dataset.shards import Shard
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.runtime.world import World

SPLITS = ("train", "validation", "test")
TOKENS_ARRAY = "tokens"

_TOKENS_AT_ONCE = 1 << 19

Tokens = npt.NDArray[Any]


class TokenSpool:
    """This rank's tokens by split, kept on disk until all ranks know where theirs belong.

    The files have no name, so they vanish however this process ends.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self._dtype, self._folder = np.dtype(dtype), folder
        self._files = {split: tempfile.TemporaryFile(dir=folder) for split in SPLITS}  # noqa: SIM115 – `close` closes
        self.counts = dict.fromkeys(SPLITS, 0)

    def add(self, split: str, tokens: Tokens) -> None:
        """Append tokens to a split."""
        with os_errors_name(self._folder):
            self._files[split].write(tokens.astype(self._dtype, copy=False).data)
        self.counts[split] += len(tokens)

    def read(self, split: str, start: int, stop: int) -> Tokens:
        """Return the tokens at start…stop-1 of this rank's part of a split."""
        file, token_bytes = self._files[split], self._dtype.itemsize
        with os_errors_name(self._folder):
            file.flush()
        data = os.pread(file.fileno(), (stop - start) * token_bytes, start * token_bytes)
        return np.frombuffer(bytearray(data), self._dtype)

    def empty(self, tokens: int) -> Tokens:
        """Return an array for so many tokens."""
        return np.empty(tokens, dtype=self._dtype)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


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


def write_rows(
    spool: TokenSpool, splits: list[SplitRows], dataset: DatasetWriter, world: World, padding: int
) -> Mapping[str, Split]:
    """Write all shards, each rank its own, and return the splits for the manifest.

    Shards that need several ranks' tokens come first, in the same order on every rank, so that no two ranks wait for
    each other. After them no rank waits for another.
    """
    shards = [shard for split in splits for shard in split.shards()]
    written = {
        (shard.split.name, shard.number): _write_shard(shard, spool, dataset, world.rank, padding)
        for shard in sorted(shards, key=lambda shard: len(shard.ranks) == 1)
        if world.rank in shard.ranks
    }
    everywhere: dict[tuple[str, int], Shard] = {}
    for of_rank in world.gather({key: shard for key, shard in written.items() if shard is not None}):
        everywhere |= of_rank
    return {
        split.name: Split(split.rows, tuple(everywhere[split.name, shard.number] for shard in split.shards()))
        for split in splits
    }


def _write_shard(shard: TokenShard, spool: TokenSpool, dataset: DatasetWriter, rank: int, padding: int) -> Shard | None:
    """Write a shard, or send this rank's tokens of it to the rank that writes it."""
    writer = shard.ranks[0]
    file = dataset.shard(shard.split.name, shard.number, TOKENS_ARRAY) if rank == writer else None
    length = shard.split.sequence_length
    rows_at_once = max(1, _TOKENS_AT_ONCE // length)
    for first in range(shard.first_row, shard.stop_row, rows_at_once):
        stop = min(first + rows_at_once, shard.stop_row)
        parts = shard.parts(*shard.token_bounds(first, stop))
        if file is None:
            _send_own(parts, shard.split.name, spool, rank, writer)
        else:
            tokens = _collect(parts, shard.split.name, spool, rank)
            fill = np.full((stop - first) * length + 1 - len(tokens), padding, dtype=tokens.dtype)
            file.add(_rows(np.concatenate([tokens, fill]), length))
    return None if file is None else file.close()


def _rows(tokens: Tokens, length: int) -> Tokens:
    """Return rows of length + 1; each begins with the last token of the one before."""
    return np.concatenate([tokens[:-1].reshape(-1, length), tokens[length::length, None]], axis=1)


def _send_own(parts: list[tuple[int, int, int]], split: str, spool: TokenSpool, rank: int, writer: int) -> None:
    for owner, start, stop in parts:
        if owner == rank:
            dist.send(torch.from_numpy(spool.read(split, start, stop).view(np.uint8)), dst=writer)


def _collect(parts: list[tuple[int, int, int]], split: str, spool: TokenSpool, rank: int) -> Tokens:
    collected = []
    for owner, start, stop in parts:
        if owner == rank:
            collected.append(spool.read(split, start, stop))
        else:
            received = spool.empty(stop - start)
            dist.recv(torch.from_numpy(received.view(np.uint8)), src=owner)
            collected.append(received)
    return np.concatenate(collected)
