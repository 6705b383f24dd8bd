"""Documents that come as texts one by one, each with a name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from trainyard.steps.data.text.source import Block, Piece, document_pieces


@dataclass(frozen=True)
class RowsBlock(Block):
    """Some whole documents."""

    texts: tuple[tuple[str, bytes], ...]
    """Name and text of each."""

    def pieces(self, *, replace_undecodable: bool) -> Iterator[Piece]:
        """Pieces of one document after the other."""
        for name, text in self.texts:
            yield from document_pieces(
                name,
                text,
                partial("{0}, document {1}, byte {2}".format, self.file, name),
                ends_document=True,
                replace_undecodable=replace_undecodable,
            )
