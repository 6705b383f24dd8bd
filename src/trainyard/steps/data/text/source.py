"""What every format of text gives: files, read forwards in blocks that say how to find the documents in them."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.steps.data.text.cutting import pieces
from trainyard.steps.runtime.errors import StepError

BLOCK_BYTES = 1 << 18
"""About how much text is handed to a process at once; with the number of processes, it bounds the memory needed."""

_OTHER_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""In this order: one begins as another does."""


@dataclass(frozen=True)
class Piece:
    """A stretch of one document, short enough to be tokenised at once."""

    document: str
    """What the document is called: the same name at every reading, whatever reads it."""

    text: str
    text_bytes: int
    replaced: int
    """How many characters stand for bytes that were not UTF-8."""

    ends_document: bool


@dataclass(frozen=True)
class Block(ABC):
    """A stretch of one file on its way to the process that takes the documents out of it. Pickles."""

    file: str
    source_bytes: int
    """How far the file was read for it, as it lies on disk: for progress."""

    @abstractmethod
    def pieces(self, *, replace_undecodable: bool) -> Iterator[Piece]:
        """The documents' pieces, in order. StepError names the file and the place of what is wrong."""


class TextFile(ABC):
    """One file of text. Its name is relative to the source's folder and never says how the file is compressed."""

    name: str
    size_bytes: int
    """On disk: what is shared out among ranks."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """The file from its beginning to its end, in order, never held as a whole."""

    def documents(self) -> Iterator[str]:
        """The names of its documents; reads as far as it is asked to."""
        for block in self.blocks():
            for piece in block.pieces(replace_undecodable=True):
                if piece.ends_document:
                    yield piece.document


@dataclass(frozen=True)
class TextSource:
    """Text files in the order in which their documents follow one another."""

    files: list[TextFile]
    described: str
    """What it is, for messages."""


def document_pieces(
    document: str, data: bytes, place: Callable[[int], str], *, ends_document: bool, replace_undecodable: bool
) -> Iterator[Piece]:
    """The pieces of one document's text, or of a stretch of it.

    StepError where it is not UTF-8; `place` tells where in the source a byte of `data` lies.
    """
    for start, stop in pieces(data):
        text, replaced = _decode(data[start:stop], start, place, replace_undecodable)
        yield Piece(document, text, stop - start, replaced, ends_document and stop == len(data))


def _decode(data: bytes, start: int, place: Callable[[int], str], replace_undecodable: bool) -> tuple[str, int]:
    try:
        return data.decode("utf-8"), 0
    except UnicodeDecodeError as failure:
        if replace_undecodable:
            text = data.decode("utf-8", errors="replace")
            return text, text.count("\ufffd") - data.count("\ufffd".encode())
        raise StepError(
            f"{place(start + failure.start)}: the byte 0x{data[failure.start]:02x} is not UTF-8 "
            f"({failure.reason}); --replace-undecodable puts U+FFFD there"
        ) from None


def without_byte_order_mark(beginning: bytes, path: Path) -> bytes:
    """The beginning of a file of text without UTF-8's mark. StepError for a file that is marked as UTF-16 or UTF-32."""
    for mark, encoding in _OTHER_BYTE_ORDER_MARKS.items():
        if beginning.startswith(mark):
            raise StepError(
                f"{path} is {encoding}, where UTF-8 is read: `iconv -f {encoding} -t UTF-8` turns it into that"
            )
    return beginning.removeprefix(codecs.BOM_UTF8)


def utf8_as_it_was(text: str) -> bytes:
    """Text decoded with `surrogateescape` as the bytes it came from; and the half of a surrogate pair, which JSON can
    escape, as bytes that are not UTF-8.
    """
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", errors="surrogatepass")


def first_names(names: Iterable[str], most: int = 10) -> str:
    """The first few names in a row, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
