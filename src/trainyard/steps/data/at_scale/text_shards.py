"""From blocks of tokens to shards: Spark brings a shard's tokens, in order, to the task that writes it."""

from __future__ import annotations

import bisect
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainyard.steps.data.at_scale.places import put
from trainyard.steps.data.at_scale.session import NumberedFile, as_task
from trainyard.steps.data.dataset.manifest import ArrayType, Split
from trainyard.steps.data.dataset.shards import Shard
from trainyard.steps.data.dataset.writer import ShardFile
from trainyard.steps.data.tokenizing.encoding import BlockEncoder, Counts, EncodedBlock, tokenize_alone
from trainyard.steps.data.tokenizing.rows import (
    SPLITS,
    TOKENS_ARRAY,
    TOKENS_AT_ONCE,
    SplitRows,
    Tokens,
    TokenShard,
    rows_of,
)
from trainyard.steps.data.tokenizing.vocabulary import Vocabulary

if TYPE_CHECKING:
    from pyspark import RDD

NumberedBlock = tuple[int, EncodedBlock]
"""The tokens of a block, and the number of its file."""

_Key = tuple[int, int]
"""The number of a section, and where in the split's stream some of its tokens begin: the order within it."""


def encode_files(encoder: BlockEncoder, files: Iterable[NumberedFile]) -> Iterator[NumberedBlock]:
    """Yield the tokens of each block of some files. Spark gives the file of the vocabulary to every machine."""
    from pyspark import SparkFiles

    on_this_machine = replace(encoder, tokenizer_file=Path(SparkFiles.get(encoder.tokenizer_file.name)))
    for number, file in files:
        for block in file.blocks():
            yield number, tokenize_alone(on_this_machine, block)


@dataclass(frozen=True)
class Section:
    """A range of a split's stream that one task collects: that of a shard, or the unused end of the training text."""

    split: str
    start: int
    stop: int
    shard: TokenShard | None


def sections_of(splits: Sequence[SplitRows]) -> list[Section]:
    """Return the sections of all splits, in order."""
    sections = []
    for split in splits:
        for shard in split.shards():
            sections.append(Section(split.name, *shard.token_bounds(shard.first_row, shard.stop_row), shard))
        if split.predicted_tokens + 1 < split.tokens:
            sections.append(Section(split.name, split.predicted_tokens + 1, split.tokens, None))
    return sections


def write_shards(
    encoded: RDD[NumberedBlock],
    counts: Mapping[int, Counts],
    splits: Sequence[SplitRows],
    vocabulary: Vocabulary,
    destination: Path,
) -> tuple[dict[SplitRows, Split], Tokens]:
    """Write every shard by a task of its own. Return the splits, and the tokens that end the training text unused."""
    sections = sections_of(splits)
    cutter = _Cutter(sections, _starts(counts))
    writer = _Writer(sections, vocabulary.end_of_text, vocabulary.padding, vocabulary.dtype, destination)
    keyed = encoded.mapPartitions(cutter).repartitionAndSortWithinPartitions(len(sections), itemgetter(0))
    written = dict(keyed.mapPartitions(as_task(writer)).collect())
    found: dict[SplitRows, Split] = {}
    for split in splits:
        numbers = [number for number, section in enumerate(sections) if section.split == split.name and section.shard]
        found[split] = Split(split.rows, tuple(written[number] for number in numbers))
    left_out = [tokens for tokens in written.values() if not isinstance(tokens, Shard)]
    return found, np.concatenate([np.empty(0, vocabulary.dtype), *left_out])


def _starts(counts: Mapping[int, Counts]) -> dict[int, dict[str, int]]:
    """Return where the tokens of each file begin in each split's stream, whose first is an end-of-text token."""
    next_start = dict.fromkeys(SPLITS, 1)
    starts = {}
    for number in sorted(counts):
        starts[number] = dict(next_start)
        for split, tokens in counts[number].tokens.items():
            next_start[split] += tokens
    return starts


@dataclass(frozen=True)
class _Cutter:
    """Cuts the tokens of blocks where sections begin and end."""

    sections: Sequence[Section]
    starts: Mapping[int, Mapping[str, int]]

    def __call__(self, blocks: Iterable[NumberedBlock]) -> Iterator[tuple[_Key, Tokens]]:
        of_split: dict[str, list[int]] = {split: [] for split in SPLITS}
        for number, section in enumerate(self.sections):
            of_split[section.split].append(number)
        stops = {split: [self.sections[number].stop for number in numbers] for split, numbers in of_split.items()}
        positions: dict[int, dict[str, int]] = {}
        for number, block in blocks:
            position = positions.setdefault(number, dict(self.starts[number]))
            for split, tokens in block.tokens.items():
                start, stop = position[split], position[split] + len(tokens)
                for place in range(bisect.bisect_right(stops[split], start), len(of_split[split])):
                    section = self.sections[of_split[split][place]]
                    if section.start >= stop:
                        break
                    first, last = max(start, section.start), min(stop, section.stop)
                    yield (of_split[split][place], first), tokens[first - start : last - start]
                position[split] = stop


@dataclass(frozen=True)
class _Writer:
    """Writes the shard of a section, given its tokens in order; the end of the training text is returned as it is."""

    sections: Sequence[Section]
    end_of_text: int
    padding: int
    dtype: str
    destination: Path

    def __call__(self, items: Iterable[tuple[_Key, Tokens]]) -> Iterator[tuple[int, Shard | Tokens]]:
        tokens = iter(items)
        first = next(tokens, None)
        if first is None:
            return
        number = first[0][0]
        section = self.sections[number]
        stream = self._in_order(section, first, tokens)
        yield number, np.concatenate(list(stream)) if section.shard is None else self._write(section.shard, stream)

    def _in_order(self, section: Section, first: Any, rest: Iterator[tuple[_Key, Tokens]]) -> Iterator[Tokens]:
        position = section.start
        if position == 0:
            yield np.array([self.end_of_text], self.dtype)
            position = 1
        for (_, start), tokens in itertools.chain([first], rest):
            assert start == position
            yield tokens
            position += len(tokens)
        assert position == section.stop

    def _write(self, shard: TokenShard, stream: Iterator[Tokens]) -> Shard:
        length = shard.split.sequence_length
        array = ArrayType(self.dtype, (length + 1,))
        with tempfile.TemporaryDirectory(prefix="trainyard-shard-") as scratch:
            file = ShardFile(Path(scratch), shard.split.name, shard.number, TOKENS_ARRAY, array)
            waiting = [np.empty(0, self.dtype)]
            for tokens in stream:
                waiting.append(tokens)
                if sum(map(len, waiting)) > TOKENS_AT_ONCE:
                    waiting = [self._add_rows(file, np.concatenate(waiting), length)]
            rest = self._add_rows(file, np.concatenate(waiting), length)
            if file.samples < shard.stop_row - shard.first_row:
                file.add(rows_of(rest, 1, length, self.padding))
            written = file.close()
            put(Path(scratch) / written.file, self.destination)
        return written

    def _add_rows(self, file: ShardFile, tokens: Tokens, length: int) -> Tokens:
        """Add all whole rows, and return the tokens that begin the next."""
        rows = (len(tokens) - 1) // length
        if rows > 0:
            file.add(rows_of(tokens[: rows * length + 1], rows, length, self.padding))
            return tokens[rows * length :]
        return tokens
