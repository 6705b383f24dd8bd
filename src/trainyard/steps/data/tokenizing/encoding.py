"""Encoding blocks of text as tokens, by split, in several processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.text.text_source import Block, Piece
from trainyard.steps.data.tokenizing.splits import SplitRule
from trainyard.steps.runtime.long_work import in_processes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LEAST_BYTES_FOR_PROCESSES = 1 << 22
"""Less text is tokenized faster than processes start."""


@dataclass(frozen=True)
class EncodedPart:
    """The tokens that one block adds to one split."""

    tokens: npt.NDArray[Any]
    documents: int
    text_bytes: int


@dataclass(frozen=True)
class EncodedBlock:
    """One block's tokens by split; `replaced` counts characters that stand for bytes that were not UTF-8."""

    file: str
    parts: dict[str, EncodedPart]
    replaced: int


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
        by_split: dict[str, list[tuple[Piece, list[int]]]] = {}
        for piece, encoding in zip(pieces, encodings, strict=True):
            by_split.setdefault(self.rule.split_of(piece.document), []).append((piece, encoding.ids))
        parts = {split: self._part(encoded) for split, encoded in by_split.items()}
        return EncodedBlock(block.file, parts, sum(piece.replaced for piece in pieces))

    def _part(self, encoded: list[tuple[Piece, list[int]]]) -> EncodedPart:
        tokens = np.empty(sum(len(ids) + piece.ends_document for piece, ids in encoded), dtype=self.dtype)
        start = 0
        for piece, ids in encoded:
            tokens[start : start + len(ids)] = ids
            start += len(ids)
            if piece.ends_document:
                tokens[start] = self.end_of_text
                start += 1
        pieces = [piece for piece, _ in encoded]
        return EncodedPart(
            tokens, sum(piece.ends_document for piece in pieces), sum(piece.text_bytes for piece in pieces)
        )


def encode_blocks(
    encoder: BlockEncoder, blocks: Iterable[Block], source_bytes: int, workers: int
) -> Iterator[tuple[Block, EncodedBlock]]:
    """Yield each block with its tokens, in order, whatever the number of processes."""
    if source_bytes < _LEAST_BYTES_FOR_PROCESSES:
        yield from ((block, encoder(block)) for block in blocks)
    else:
        yield from in_processes(functools.partial(encode_alone, encoder), blocks, workers, "tokenized text")


def encode_alone(encoder: BlockEncoder, block: Block) -> EncodedBlock:
    """Encode in one of several processes, without the tokenizer's threads, which would compete with them."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return encoder(block)


@functools.lru_cache(maxsize=1)
def _tokenizer(file: Path) -> Tokenizer:
    from trainyard.steps.data.tokenizing.vocabulary import plain_tokenizer

    return plain_tokenizer(file.read_text(encoding="utf-8"))
