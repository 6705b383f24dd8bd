"""What every text format returns: files, read forwards in blocks, and the pieces of documents found in a block."""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from trainyard.settings.quantities import counted, first_names
from trainyard.steps.data.text.source_files import SourcePath
from trainyard.steps.runtime.errors import StepError

BLOCK_BYTES = 1 << 18
"""About how much text is handed to a process at a time; with the number of processes, it bounds the memory needed."""

PIECE_BYTES = 1 << 15
"""Longer texts are tokenized more slowly, and take memory for every token."""

_LOOK_BACK_BYTES = 1 << 12
_SAFE_CUT = re.compile(rb"[A-Za-z0-9\x80-\xff](?=[ \n][A-Za-z\x80-\xff])")
"""Before a single space or newline between words: byte-level tokenizers begin a new word there in any case."""

_MOST_CONTINUATION_BYTES = 3

_OTHER_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""In this order, because one mark is the beginning of another."""


@dataclass(frozen=True)
class Piece:
    """A part of one document, short enough to be tokenized at once."""

    document: str
    """The document's name, the same at every reading."""

    text: str
    text_bytes: int
    replaced: int
    """How many characters stand for bytes that were not UTF-8."""

    ends_document: bool


class Text(NamedTuple):
    """The text of one document, or a part of it, with bytes that may not be UTF-8."""

    document: str
    data: bytes
    place: Callable[[int], str]
    """Where in the source a byte of `data` lies, for messages."""
    ends_document: bool = True


@dataclass(frozen=True)
class Block(ABC):
    """A part of one file, sent to the process that takes the documents out of it. Picklable."""

    file: str
    source_bytes: int
    """How many bytes of the file on disk were read for it, for progress."""

    @abstractmethod
    def texts(self) -> Iterator[Text]:
        """Yield the texts of its documents, in order. Raise StepError with the file and the place of an error."""

    def pieces(self, *, replace_undecodable: bool) -> Iterator[Piece]:
        """Yield the documents' pieces, in order. Raise StepError with the file and the place of an error."""
        for document, data, place, ends_document in self.texts():
            for start, stop in pieces(data):
                text, replaced = _decode(data[start:stop], start, place, replace_undecodable)
                yield Piece(document, text, stop - start, replaced, ends_document and stop == len(data))


@dataclass(frozen=True)
class RowsBlock(Block):
    """Some whole documents."""

    rows: tuple[tuple[str, bytes], ...]
    """Name and text of each."""

    def texts(self) -> Iterator[Text]:
        """Yield the documents."""
        for name, data in self.rows:
            yield Text(name, data, partial("{0}, document {1}, byte {2}".format, self.file, name))


class TextFile(ABC):
    """One file of text. Its name is relative to the source's folder, without the ending of a compression."""

    name: str
    size_bytes: int
    """On disk: what is divided among ranks."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Yield the file from its beginning to its end, never holding all of it."""

    def documents(self) -> Iterator[str]:
        """Yield the names of its documents, reading only as far as needed."""
        for block in self.blocks():
            for piece in block.pieces(replace_undecodable=True):
                if piece.ends_document:
                    yield piece.document


@dataclass(frozen=True)
class TextSource:
    """Text files, in the order of their documents."""

    files: list[TextFile]
    description: str
    """What it is, for messages."""
    notes: tuple[str, ...] = ()
    """Lines to print: what was skipped, and how a file was divided."""


def owners(files: Sequence[TextFile], parts: int) -> list[int]:
    """Return which of so many consecutive parts each file belongs to; the parts have about equally many bytes."""
    sizes = np.array([file.size_bytes for file in files])
    middles = np.cumsum(sizes) - sizes / 2
    found: list[int] = np.minimum(middles * parts // max(1, sizes.sum()), parts - 1).astype(int).tolist()
    return found


def pieces(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the bounds of successive pieces of UTF-8 text, each at most PIECE_BYTES long; none if there is no text."""
    start = 0
    while start < len(data):
        stop = cut_before(data, start, start + PIECE_BYTES)
        yield start, stop
        start = stop


def cut_before(data: bytes, start: int, limit: int) -> int:
    """Return where to cut between `start` and `limit`, or the text's end if that comes first.

    The cut is between two words near the limit if possible, else at the limit, but never inside a character.
    """
    if limit >= len(data):
        return len(data)
    safe = [found.end() for found in _SAFE_CUT.finditer(data, max(start, limit - _LOOK_BACK_BYTES), limit)]
    if safe:
        return safe[-1]
    for stop in range(limit, max(start, limit - _MOST_CONTINUATION_BYTES - 1), -1):
        if data[stop] & 0xC0 != 0x80:
            return stop
    return limit


def _decode(data: bytes, start: int, place: Callable[[int], str], replace_undecodable: bool) -> tuple[str, int]:
    try:
        return data.decode("utf-8"), 0
    except UnicodeDecodeError as failure:
        if replace_undecodable:
            text = data.decode("utf-8", errors="replace")
            return text, text.count("\ufffd") - data.count("\ufffd".encode())
        raise StepError(
            f"{place(start + failure.start)}: the byte 0x{data[failure.start]:02x} is not UTF-8 "
            f"({failure.reason}); --replace-undecodable true puts U+FFFD there"
        ) from None


def without_byte_order_mark(beginning: bytes, path: SourcePath) -> bytes:
    """Return the beginning of a text file without UTF-8's mark. Raise StepError for one marked as UTF-16 or UTF-32."""
    for mark, encoding in _OTHER_BYTE_ORDER_MARKS.items():
        if beginning.startswith(mark):
            raise StepError(f"{path} is {encoding}, expected UTF-8; convert it with `iconv -f {encoding} -t UTF-8`")
    return beginning.removeprefix(codecs.BOM_UTF8)


def utf8_as_it_was(text: str) -> bytes:
    """Return the bytes that a text decoded with `surrogateescape` came from.

    Half of a surrogate pair, which JSON can escape, becomes bytes that are not UTF-8.
    """
    try:
        return text.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", errors="surrogatepass")


def skipped_files(names: Sequence[str], what: str) -> tuple[str, ...]:
    """Return the warning that files were skipped, which are not `what`; none if there are none."""
    if not names:
        return ()
    return (f"warning: skipped {counted(len(names), 'file')}, hidden or not {what}: {first_names(names)}",)
