"""Making a dataset of tokens from the settings, on all ranks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trainyard.settings.steps.prepare_text import PrepareText
from trainyard.steps.data.dataset.manifest import ArrayType
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.text import open_source
from trainyard.steps.data.text.source import Block, TextFile, TextSource, first_names, owners
from trainyard.steps.data.tokenizing.encoding import BlockEncoder, encode_blocks
from trainyard.steps.data.tokenizing.exchange import TokenSpool, write_rows
from trainyard.steps.data.tokenizing.finishing import Counts, finish, learn, require_enough
from trainyard.steps.data.tokenizing.rows import SPLITS, TOKENS_ARRAY, SplitRows, Tokens
from trainyard.steps.data.tokenizing.splits import SplitRule, split_rule
from trainyard.steps.data.tokenizing.vocabulary import (
    TOKENIZER_FILE,
    Vocabulary,
    load_vocabulary,
)
from trainyard.steps.runtime.files import require_writable
from trainyard.steps.runtime.long_work import ProgressLines
from trainyard.steps.runtime.processors import usable_processors
from trainyard.steps.runtime.rank_variables import read_rank_variables
from trainyard.steps.runtime.world import World, join_world, lost_connections_explained


def prepare_tokens(settings: PrepareText) -> int:
    """Read, tokenize and pack the text, after checking all that can be checked without the other ranks."""
    source, skipped = open_source(settings)
    given = None if settings.tokenizer is None else load_vocabulary(settings.tokenizer)
    variables = read_rank_variables(os.environ)
    require_writable([settings.prepared], variables.rank)
    with (
        lost_connections_explained(variables.rank),
        tempfile.TemporaryDirectory(prefix="trainyard-tokens-") as scratch,
        join_world(settings.process_group_timeout_seconds) as world,
    ):
        if skipped:
            world.log(f"skipped files that are hidden or not text: {first_names(skipped)}")
        documents = (document for file in source.files for document in file.documents())
        rule = split_rule(documents, settings.validation_fraction, settings.test_fraction, settings.seed)
        vocabulary = given or world.broadcast(learn(source, rule, settings) if world.is_main else None)
        assert vocabulary is not None
        arrays = {TOKENS_ARRAY: ArrayType(vocabulary.dtype, (settings.sequence_length + 1,))}
        with DatasetWriter(settings.prepared, arrays, settings.shard_samples, clears_folder=world.is_main) as dataset:
            world.barrier()
            spool = TokenSpool(Path(scratch), vocabulary.dtype)
            workers = settings.workers or max(1, usable_processors() // variables.processes_per_node)
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
    files = files_of_rank(source.files, world.rank, world.size)
    source_bytes = sum(file.size_bytes for file in files)
    encoder = BlockEncoder(
        scratch / TOKENIZER_FILE, vocabulary.end_of_text, vocabulary.dtype, rule, settings.replace_undecodable
    )
    progress = ProgressLines("tokenized", source_bytes, f"bytes of rank {world.rank}'s files")
    counts = Counts()
    if world.is_main:
        for split in SPLITS:
            spool.add(split, np.array([vocabulary.end_of_text]))
    for block, encoded in encode_blocks(encoder, _blocks(files), source_bytes, workers):
        for split, part in encoded.parts.items():
            spool.add(split, part.tokens)
            counts.documents[split] += part.documents
            counts.text_bytes[split] += part.text_bytes
        if encoded.replaced:
            counts.replaced[encoded.file] = counts.replaced.get(encoded.file, 0) + encoded.replaced
        progress.advance(block.source_bytes)
    return counts


def files_of_rank(files: list[TextFile], rank: int, world_size: int) -> list[TextFile]:
    """Return a rank's consecutive share of the files; the shares have about equally many bytes."""
    of_rank = owners(files, world_size)
    return [file for file, owner in zip(files, of_rank, strict=True) if owner == rank]


def _blocks(files: list[TextFile]) -> Iterator[Block]:
    for file in files:
        yield from file.blocks()


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
    total = Counts.sum(of_rank for _, of_rank in everywhere)
    for file, replaced in total.replaced.items():
        world.log(f"{file}: {replaced} characters stand for bytes that are not UTF-8")
    splits = [
        SplitRows(
            split,
            (0, *(int(end) for end in np.cumsum([tokens[split] for tokens, _ in everywhere]))),
            settings.sequence_length,
            settings.shard_samples,
        )
        for split in SPLITS
        if total.documents[split]
    ]
    require_enough(splits, total, settings)
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
