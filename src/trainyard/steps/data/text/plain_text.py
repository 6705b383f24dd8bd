"""Files that are one document each: .txt and .md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.steps.data.text.compression import SourcePath, chunks
from trainyard.steps.data.text.source import (
    BLOCK_BYTES,
    Block,
    Piece,
    TextFile,
    cut_before,
    document_pieces,
    without_byte_order_mark,
)

_MAY_BE_EMPTY_BYTES = 512
"""A compressed file without text still has a header, with its name in it."""


@dataclass(frozen=True)
class TextBlock(Block):
    """A part of a file that is one document."""

    document: str
    data: bytes
    offset: int
    ends_document: bool

    def pieces(self, *, replace_undecodable: bool) -> Iterator[Piece]:
        """Yield the pieces of the document."""
        yield from document_pieces(
            self.document,
            self.data,
            lambda place: f"{self.file}, byte {self.offset + place}",
            ends_document=self.ends_document,
            replace_undecodable=replace_undecodable,
        )


class PlainTextFile(TextFile):
    """A file of text, plain or compressed."""

    def __init__(self, path: SourcePath, name: str) -> None:
        self._path = path
        self.name = name
        self.size_bytes = path.stat().st_size

    def documents(self) -> Iterator[str]:
        """Yield the file's own name, unless the file is empty."""
        if self.size_bytes > _MAY_BE_EMPTY_BYTES:
            yield self.name
        else:
            yield from super().documents()

    def blocks(self) -> Iterator[TextBlock]:
        """Yield blocks of about equal length, cut between words; the last one ends the document."""
        waiting, offset, source_bytes = b"", 0, 0
        for data, read in chunks(self._path):
            waiting += data
            source_bytes += read
            start = 0
            while len(waiting) - start > BLOCK_BYTES:
                stop = cut_before(waiting, start, start + BLOCK_BYTES)
                yield self._block(waiting[start:stop], offset, source_bytes, ends_document=False)
                offset, start, source_bytes = offset + stop - start, stop, 0
            waiting = waiting[start:]
        if waiting:
            yield self._block(waiting, offset, source_bytes, ends_document=True)

    def _block(self, data: bytes, offset: int, source_bytes: int, *, ends_document: bool) -> TextBlock:
        text = without_byte_order_mark(data, self._path) if offset == 0 else data
        offset += len(data) - len(text)
        return TextBlock(str(self._path), source_bytes, self.name, text, offset, ends_document)
