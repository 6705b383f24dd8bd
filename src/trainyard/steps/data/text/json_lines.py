"""Files with one JSON object per line, each a document: .jsonl."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from trainyard.steps.data.text.compression import SourcePath, chunks
from trainyard.steps.data.text.source import (
    BLOCK_BYTES,
    Block,
    Piece,
    TextFile,
    document_pieces,
    first_names,
    utf8_as_it_was,
    without_byte_order_mark,
)
from trainyard.steps.runtime.errors import StepError

_LONGEST_LINE_BYTES = 1 << 28
"""A line can only be parsed as a whole."""


@dataclass(frozen=True)
class JsonLinesBlock(Block):
    """Some whole lines."""

    name: str
    data: bytes
    first_line: int
    text_field: str

    def pieces(self, *, replace_undecodable: bool) -> Iterator[Piece]:
        """Yield the pieces of one document after the other; lines without text have none."""
        for number, line in enumerate(self.data.split(b"\n"), start=self.first_line):
            if line and not line.isspace():
                place = f"{self.file}:{number}"
                yield from document_pieces(
                    f"{self.name}:{number}",
                    self._text(line, place),
                    partial(_line, place),
                    ends_document=True,
                    replace_undecodable=replace_undecodable,
                )

    def _text(self, line: bytes, place: str) -> bytes:
        """Return the line's text, including bytes that are not UTF-8."""
        try:
            # Integers are parsed as floats, which have no limit on digits: no number is needed here.
            found = json.loads(line.decode("utf-8", errors="surrogateescape"), parse_int=float)
        except (ValueError, RecursionError) as failure:
            raise StepError(f"{place} is not valid JSON: {failure}") from None
        if not isinstance(found, dict):
            raise StepError(f"{place} is not a JSON object: {line[:60].decode(errors='replace')}")
        if self.text_field not in found:
            raise StepError(f"{place}: {missing_field(self.text_field, list(found))}")
        text = found[self.text_field]
        if not isinstance(text, str | None):
            raise StepError(f"{place}: the field {self.text_field!r} is not text: {json.dumps(text)[:60]}")
        return utf8_as_it_was(text or "")


def _line(place: str, _offset: int) -> str:
    """Return the line: an offset into the text is not one into the line's JSON."""
    return place


def missing_field(name: str, known: list[str]) -> str:
    """Return the message for a field that does not exist."""
    close = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean --text-field {close[0]}?" if close else ""
    return f"no field {name!r} (--text-field); found {first_names(known) or 'none'}{meant}"


class JsonLinesFile(TextFile):
    """A file of JSON objects, plain or compressed."""

    def __init__(self, path: SourcePath, name: str, text_field: str) -> None:
        self._path, self._text_field = path, text_field
        self.name = name
        self.size_bytes = path.stat().st_size

    def blocks(self) -> Iterator[JsonLinesBlock]:
        """Yield as many whole lines as make a block."""
        waiting, line, source_bytes = bytearray(), 1, 0
        for data, read in chunks(self._path):
            waiting += data
            source_bytes += read
            end = waiting.rfind(b"\n", max(0, len(waiting) - len(data))) + 1
            if len(waiting) >= BLOCK_BYTES and end:
                block = self._block(bytes(waiting[:end]), line, source_bytes)
                yield block
                line, source_bytes = line + block.data.count(b"\n"), 0
                del waiting[:end]
            elif len(waiting) > _LONGEST_LINE_BYTES:
                raise StepError(f"{self._path}:{line} is a line of more than {_LONGEST_LINE_BYTES >> 20} MiB")
        if waiting:
            yield self._block(bytes(waiting), line, source_bytes)

    def _block(self, data: bytes, first_line: int, source_bytes: int) -> JsonLinesBlock:
        data = without_byte_order_mark(data, self._path) if first_line == 1 else data
        return JsonLinesBlock(str(self._path), source_bytes, self.name, data, first_line, self._text_field)
