"""Making a dataset of tokens from the settings, on all ranks."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainyard.foundation.configs.prepare_text import PrepareText
from trainyard.steps.data.dataset.manifest import ArrayType, TokenText
from trainyard.steps.data.dataset.writer import DatasetWriter
from trainyard.steps.data.text import open_source
from trainyard.steps.data.text.source import Block, TextFile, TextSource, first_names
from trainyard.steps.data.tokenizing.encoding import BlockEncoder, encode_blocks
from trainyard.steps.data.tokenizing.rows import SPLITS, TOKENS_ARRAY, SplitRows, TokenSpool, write_rows
from trainyard.steps.data.tokenizing.splits import SplitRule, split_rule
from trainyard.steps.data.tokenizing.vocabulary import (
    TOKENIZER_FILE,
    Vocabulary,
    learn_vocabulary,
    load_vocabulary,
    plain_tokenizer,
)
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import require_writable
from trainyard.steps.runtime.long_work import ProgressLines
from trainyard.steps.runtime.rank_variables import read_rank_variables
from trainyard.steps.runtime.world import World, join_world, lost_connections_explained, usable_processors


@dataclass
class Counts:
    """Counts of the text by split, and of replaced characters by file."""

    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    text_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    replaced: dict[str, int] = field(default_factory=dict)


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
        vocabulary = given or world.broadcast(_learn(source, rule, settings) if world.is_main else None)
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


def _learn(source: TextSource, rule: SplitRule, settings: PrepareText) -> Vocabulary:
    print(f"learning a vocabulary from {source.description}", flush=True)
    vocabulary = learn_vocabulary(source, rule, settings.vocabulary_size, settings.vocabulary_sample_bytes)
    if vocabulary.size < settings.vocabulary_size:
        print(f"the text yields only {vocabulary.size} tokens for the vocabulary", flush=True)
    return vocabulary


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
    middles = np.cumsum([file.size_bytes for file in files]) - np.array([file.size_bytes for file in files]) / 2
    total_bytes = max(1, sum(file.size_bytes for file in files))
    owners = np.minimum(middles * world_size // total_bytes, world_size - 1)
    return [file for file, owner in zip(files, owners, strict=True) if owner == rank]


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
    for of_rank in (counts for _, counts in everywhere):
        for file, replaced in of_rank.replaced.items():
            world.log(f"{file}: {replaced} characters stand for bytes that are not UTF-8")
    documents = {split: sum(counts.documents[split] for _, counts in everywhere) for split in SPLITS}
    splits = [
        SplitRows(
            split,
            (0, *(int(end) for end in np.cumsum([tokens[split] for tokens, _ in everywhere]))),
            settings.sequence_length,
            settings.shard_samples,
        )
        for split in SPLITS
        if documents[split]
    ]
    _require_enough(splits, documents, settings)
    written = write_rows(spool, splits, dataset, world, vocabulary.padding)
    left_out = _left_out(splits[0], spool, world, vocabulary)
    if not world.is_main:
        return
    for name, split in written.items():
        dataset.add_split(name, split)
    vocabulary.write(settings.prepared)
    text_bytes = {split.name: sum(counts.text_bytes[split.name] for _, counts in everywhere) for split in splits}
    text_bytes["train"] -= left_out.text_bytes
    text = TokenText(
        vocabulary_size=vocabulary.size,
        end_of_text=vocabulary.end_of_text,
        padding=vocabulary.padding,
        tokenizer_sha256=hashlib.sha256(vocabulary.tokenizer_json.encode()).hexdigest(),
        documents={split.name: documents[split.name] for split in splits},
        tokens={split.name: split.predicted_tokens for split in splits},
        text_bytes=text_bytes,
    )
    dataset.finish("tokens", (), _provenance(settings), text)
    _say_result(settings, splits, text, left_out.tokens)


@dataclass(frozen=True)
class LeftOut:
    """The end of the training text, which does not fill a row."""

    tokens: int
    text_bytes: int


def _left_out(train: SplitRows, spool: TokenSpool, world: World, vocabulary: Vocabulary) -> LeftOut:
    first, end = train.predicted_tokens + 1, train.tokens
    own_start = train.bounds[world.rank]
    start, stop = max(first, own_start) - own_start, max(first, train.bounds[world.rank + 1]) - own_start
    tokens = np.concatenate(world.gather(spool.read("train", start, stop)))
    assert len(tokens) == end - first
    text = plain_tokenizer(vocabulary.tokenizer_json).decode(tokens[tokens != vocabulary.end_of_text].tolist())
    return LeftOut(len(tokens), len(text.encode()))


def _require_enough(splits: list[SplitRows], documents: Mapping[str, int], settings: PrepareText) -> None:
    total = sum(documents.values())
    wanted = {"validation": settings.validation_fraction, "test": settings.test_fraction}
    for name, fraction in wanted.items():
        if fraction > 0 and not documents[name]:
            raise StepError(
                f"none of the {total} documents is in the split {name}: --{name}-fraction {fraction:g} is too small; "
                "set it higher, or to 0 to omit the split"
            )
    train = next((split for split in splits if split.name == "train"), None)
    if train is None or not train.rows:
        raise StepError(
            f"the training text has {train.tokens - 1 if train else 0} tokens, too few for one row of "
            f"--sequence-length {settings.sequence_length}; give more text or a shorter length"
        )


def _say_result(settings: PrepareText, splits: list[SplitRows], text: TokenText, left_out_tokens: int) -> None:
    for split in splits:
        print(
            f"{split.name}: {text.documents[split.name]} documents, {text.text_bytes[split.name]} bytes, "
            f"{text.tokens[split.name]} tokens in {split.rows} rows of {split.sequence_length}",
            flush=True,
        )
    if left_out_tokens:
        print(f"left out the last {left_out_tokens} tokens of the training text, which do not fill a row", flush=True)
    print(f"{text.vocabulary_size} tokens in the vocabulary: {settings.prepared}", flush=True)


def _provenance(settings: PrepareText) -> Mapping[str, object]:
    """Return the settings that made the dataset: enough to make it again, without paths of this machine."""
    return {
        "text": "Python's documentation" if settings.source is None else "files",
        "text_field": settings.text_field,
        "vocabulary": "learned" if settings.tokenizer is None else "given",
        "sequence_length": settings.sequence_length,
        "seed": settings.seed,
        "validation_fraction": settings.validation_fraction,
        "test_fraction": settings.test_fraction,
    }
