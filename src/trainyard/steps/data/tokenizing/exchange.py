"""Writing rows of every rank's tokens: each keeps its own on disk, and shards take the others' from them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from trainyard.settings.files import os_errors_name
from trainyard.steps.data.dataset.manifest import Split
from trainyard.steps.data.dataset.shards import Shard
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.tokenizing.rows import (
    SPLITS,
    TOKENS_ARRAY,
    TOKENS_AT_ONCE,
    SplitRows,
    Tokens,
    TokenShard,
    rows_of,
)
from trainyard.steps.runtime.world import World


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


def write_rows(
    spool: TokenSpool, splits: list[SplitRows], dataset: DatasetWriter, world: World, padding: int
) -> Mapping[SplitRows, Split]:
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
        split: Split(split.rows, tuple(everywhere[split.name, shard.number] for shard in split.shards()))
        for split in splits
    }


def _write_shard(shard: TokenShard, spool: TokenSpool, dataset: DatasetWriter, rank: int, padding: int) -> Shard | None:
    """Write a shard, or send this rank's tokens of it to the rank that writes it."""
    writer = shard.ranks[0]
    file = dataset.shard(shard.split.name, shard.number, TOKENS_ARRAY) if rank == writer else None
    length = shard.split.sequence_length
    rows_at_once = max(1, TOKENS_AT_ONCE // length)
    for first in range(shard.first_row, shard.stop_row, rows_at_once):
        stop = min(first + rows_at_once, shard.stop_row)
        parts = shard.parts(*shard.token_bounds(first, stop))
        if file is None:
            _send_own(parts, shard.split.name, spool, rank, writer)
        else:
            tokens = _collect(parts, shard.split.name, spool, rank)
            file.add(rows_of(tokens, stop - first, length, padding))
    return None if file is None else file.close()


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
