"""Encoding blocks of text as tokens, by split, in several processes."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.text.text_source import Block
from trainyard.steps.data.tokenizing.splits import SplitRule
from trainyard.steps.runtime.long_work import in_processes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Item = TypeVar("Item")
Result = TypeVar("Result")

_LEAST_BYTES_FOR_PROCESSES = 1 << 22
"""Less text is tokenized faster than processes start."""


@dataclass
class Counts:
    """What some text has: documents, bytes and tokens by split, and by file the characters that stand for bytes that
    were not UTF-8."""

    documents: Counter[str] = field(default_factory=Counter)
    text_bytes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)

    def add(self, other: Counts) -> Counts:
        """Add the counts of other text, and return these."""
        for name, counts in vars(other).items():
            getattr(self, name).update(counts)
        return self


class EncodedBlock(NamedTuple):
    """One block's tokens by split, and its counts."""

    tokens: dict[str, npt.NDArray[Any]]
    counts: Counts


@dataclass(frozen=True)
class BlockEncoder:
    """Encodes the documents in a block, each followed by the end-of-text token."""

    tokenizer_file: Path
    """Read once in each process: a vocabulary is too large to send with every block."""

    end_of_text: int
    dtype: str
    rule: SplitRule
    replace_undecodable: bool

    def __call__(self, block: Block) -> EncodedBlock:
        """Encode one block."""
        pieces = list(block.pieces(replace_undecodable=self.replace_undecodable))
        encodings = _tokenizer(self.tokenizer_file).encode_batch_fast(
            [piece.text for piece in pieces], add_special_tokens=False
        )
        by_split: dict[str, list[int]] = {}
        counts = Counts()
        for piece, encoding in zip(pieces, encodings, strict=True):
            split = self.rule.split_of(piece.document)
            tokens = by_split.setdefault(split, [])
            tokens += encoding.ids
            if piece.ends_document:
                tokens.append(self.end_of_text)
                counts.documents[split] += 1
            if piece.replaced:
                counts.replaced[block.file] += piece.replaced
            counts.text_bytes[split] += piece.text_bytes
        counts.tokens.update({split: len(tokens) for split, tokens in by_split.items()})
        return EncodedBlock({split: np.array(tokens, self.dtype) for split, tokens in by_split.items()}, counts)


def tokenize_in_processes(
    work: Callable[[Item], Result], items: Iterable[Item], source_bytes: int, workers: int, what: str
) -> Iterator[tuple[Item, Result]]:
    """Yield each item with what `work` returns for it, in order, whatever the number of processes.

    `what` completes "a process that …".
    """
    if source_bytes < _LEAST_BYTES_FOR_PROCESSES:
        yield from ((item, work(item)) for item in items)
    else:
        yield from in_processes(functools.partial(tokenize_alone, work), items, workers, what)


def tokenize_alone(work: Callable[[Item], Result], item: Item) -> Result:
    """Do work in one of several processes, without the tokenizer's threads, which would compete with them."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return work(item)


@functools.lru_cache(maxsize=1)
def _tokenizer(file: Path) -> Tokenizer:
    from trainyard.steps.data.tokenizing.vocabulary import plain_tokenizer

    return plain_tokenizer(file.read_text(encoding="utf-8"))
