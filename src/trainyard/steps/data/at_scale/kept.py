"""A source of text without some of its documents: what it yields is what the rest alone would."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.text.plain_text import PlainTextFile
from trainyard.steps.data.text.source import Block, Piece, TextFile, TextSource

Keys = npt.NDArray[np.uint64]


def document_key(name: str) -> int:
    """Return what stands for a document's name among those of its file: 8 bytes, however long the name is."""
    data = name.encode("utf-8", errors="surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class KeptBlock(Block):
    """A block without the dropped documents."""

    whole: Block
    dropped: frozenset[int]

    def pieces(self, *, replace_undecodable: bool) -> Iterator[Piece]:
        """Yield the pieces of the documents that are kept."""
        name, is_dropped = None, False
        for piece in self.whole.pieces(replace_undecodable=replace_undecodable):
            if piece.document != name:
                name, is_dropped = piece.document, document_key(piece.document) in self.dropped
            if not is_dropped:
                yield piece


class KeptFile(TextFile):
    """A file without the dropped documents."""

    def __init__(self, whole: TextFile, dropped: Keys) -> None:
        self.name, self.size_bytes = whole.name, whole.size_bytes
        self._whole, self._dropped = whole, dropped

    def blocks(self) -> Iterator[KeptBlock]:
        """Yield the blocks of the whole file, each without its dropped documents."""
        dropped = frozenset(self._dropped.tolist())
        for block in self._whole.blocks():
            yield KeptBlock(block.file, block.source_bytes, block, dropped)


def kept_files(files: list[TextFile], dropped: Mapping[int, Keys]) -> list[TextFile]:
    """Return the files without the documents whose keys are given by the file's number.

    A plain text is one document: without it the file is left out, as if it did not exist.
    """
    kept: list[TextFile] = []
    for number, file in enumerate(files):
        if number not in dropped:
            kept.append(file)
        elif not isinstance(file, PlainTextFile):
            kept.append(KeptFile(file, dropped[number]))
    return kept


def without(source: TextSource, dropped: Mapping[int, Keys]) -> TextSource:
    """Return the source without the documents whose keys are given by their file's number."""
    return TextSource(kept_files(source.files, dropped), source.description)
