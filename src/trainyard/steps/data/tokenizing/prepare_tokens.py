"""Making a dataset of tokens from the settings, on all ranks."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from trainyard.settings.files import os_errors_name
from trainyard.settings.steps.preparation import PrepareText
from trainyard.settings.this_machine import available_processors
from trainyard.steps.data.dataset.manifest import ArrayType, Split
from trainyard.steps.data.dataset.shards import Shard
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.text import open_source
from trainyard.steps.data.text.text_source import TextSource, owners
from trainyard.steps.data.tokenizing.encoding import BlockEncoder, Counts, tokenize_in_processes
from trainyard.steps.data.tokenizing.finishing import finish, learn, rows_of_splits
from trainyard.steps.data.tokenizing.rows import (
    SPLITS,
    TOKENS_ARRAY,
    TOKENS_AT_ONCE,
    SplitRows,
    Tokens,
    TokenShard,
    rows_of,
)
from trainyard.steps.data.tokenizing.splits import SplitRule, split_rule
from trainyard.steps.data.tokenizing.vocabulary import (
    TOKENIZER_FILE,
    Vocabulary,
    load_vocabulary,
)
from trainyard.steps.runtime.long_work import ProgressLines
from trainyard.steps.runtime.world import World, ranks_joined


def prepare_tokens(settings: PrepareText) -> int:
    """Read, tokenize and pack the text, after checking all that can be checked without the other ranks."""
    source = open_source(settings)
    given = None if settings.tokenizer is None else load_vocabulary(settings.tokenizer)
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-tokens-") as scratch,
        ranks_joined(settings.process_group_timeout_seconds, [settings.prepared], uses_gpu=False) as world,
    ):
        for note in source.notes:
            world.log(note)
        documents = (document for file in source.files for document in file.documents())
        rule = split_rule(documents, settings.validation_fraction, settings.test_fraction, settings.seed)
        vocabulary = given or world.broadcast(learn(source, rule, settings) if world.is_main else None)
        assert vocabulary is not None
        arrays = {TOKENS_ARRAY: ArrayType(vocabulary.dtype, (settings.sequence_length + 1,))}
        with DatasetWriter(settings.prepared, arrays, settings.shard_samples, clears_folder=world.is_main) as dataset:
            world.barrier()
            spool = TokenSpool(Path(scratch), vocabulary.dtype)
            workers = settings.workers or max(1, available_processors() // world.variables.processes_per_node)
            counts = _encode(source, world, spool, rule, vocabulary, Path(scratch), workers, settings)
            _write(settings, world, spool, counts, vocabulary, dataset)
            spool.close()
    return 0


def _encode(
    source: TextSource,
    world: World,
    spool: TokenSpool,
    rule: SplitRule,
    vocabulary: Vocabulary,
    scratch: Path,
    workers: int,
    settings: PrepareText,
) -> Counts:
    """Tokenize this rank's files into its spool."""
    (scratch / TOKENIZER_FILE).write_text(vocabulary.tokenizer_json, encoding="utf-8")
    of_rank = owners(source.files, world.size)
    files = [file for file, owner in zip(source.files, of_rank, strict=True) if owner == world.rank]
    source_bytes = sum(file.size_bytes for file in files)
    encoder = BlockEncoder(
        scratch / TOKENIZER_FILE, vocabulary.end_of_text, vocabulary.dtype, rule, settings.replace_undecodable
    )
    progress = ProgressLines("tokenized", source_bytes, f"bytes of rank {world.rank}'s files")
    counts = Counts()
    if world.is_main:
        for split in SPLITS:
            spool.add(split, np.array([vocabulary.end_of_text]))
    blocks = itertools.chain.from_iterable(file.blocks() for file in files)
    for block, encoded in tokenize_in_processes(encoder, blocks, source_bytes, workers, "tokenized text"):
        for split, tokens in encoded.tokens.items():
            spool.add(split, tokens)
        counts.add(encoded.counts)
        progress.advance(block.source_bytes)
    return counts


def _write(
    settings: PrepareText,
    world: World,
    spool: TokenSpool,
    counts: Counts,
    vocabulary: Vocabulary,
    dataset: DatasetWriter,
) -> None:
    """Pack all ranks' tokens into rows and write them; rank 0 writes the manifest."""
    everywhere = world.gather((spool.counts, counts))
    total = Counts()
    for _, of_rank in everywhere:
        total.add(of_rank)
    for file, replaced in total.replaced.items():
        world.log(f"{file}: {replaced} characters stand for bytes that are not UTF-8")
    splits = rows_of_splits(total, [tokens for tokens, _ in everywhere], settings)
    written = write_rows(spool, splits, dataset, world, vocabulary.padding)
    left_out = _left_out(splits[0], spool, world)
    if world.is_main:
        finish(settings, dataset, written, total, left_out, vocabulary)


def _left_out(train: SplitRows, spool: TokenSpool, world: World) -> Tokens:
    """Return the end of the training text, which does not fill a row."""
    first, end = train.predicted_tokens + 1, train.tokens
    own_start = train.bounds[world.rank]
    start, stop = max(first, own_start) - own_start, max(first, train.bounds[world.rank + 1]) - own_start
    tokens = np.concatenate(world.gather(spool.read("train", start, stop)))
    assert len(tokens) == end - first
    return tokens


class TokenSpool:
    """This rank's tokens by split, kept on disk until all ranks know where theirs belong.

    The files have no name, so they vanish however this process ends.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self.dtype, self._folder = np.dtype(dtype), folder
        self._files = {split: tempfile.TemporaryFile(dir=folder) for split in SPLITS}  # noqa: SIM115 – `close` closes
        self.counts = dict.fromkeys(SPLITS, 0)

    def add(self, split: str, tokens: Tokens) -> None:
        """Append tokens to a split."""
        with os_errors_name(self._folder):
            self._files[split].write(tokens.astype(self.dtype, copy=False).data)
        self.counts[split] += len(tokens)

    def read(self, split: str, start: int, stop: int) -> Tokens:
        """Return the tokens at start…stop-1 of this rank's part of a split."""
        file, token_bytes = self._files[split], self.dtype.itemsize
        with os_errors_name(self._folder):
            file.flush()
        data = os.pread(file.fileno(), (stop - start) * token_bytes, start * token_bytes)
        return np.frombuffer(bytearray(data), self.dtype)

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
            for _, start, stop in (part for part in parts if part[0] == rank):
                dist.send(torch.from_numpy(spool.read(shard.split.name, start, stop).view(np.uint8)), dst=writer)
        else:
            tokens = _collect(parts, shard.split.name, spool, rank)
            file.add(rows_of(tokens, stop - first, length, padding))
    return None if file is None else file.close()


def _collect(parts: list[tuple[int, int, int]], split: str, spool: TokenSpool, rank: int) -> Tokens:
    collected = []
    for owner, start, stop in parts:
        if owner == rank:
            collected.append(spool.read(split, start, stop))
        else:
            received = np.empty(stop - start, dtype=spool.dtype)
            dist.recv(torch.from_numpy(received.view(np.uint8)), src=owner)
            collected.append(received)
    return np.concatenate(collected)
