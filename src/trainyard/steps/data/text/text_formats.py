"""Files of text: .txt and .md are one document each, or many in one file; .jsonl has one per line, .parquet per row."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, Any, NamedTuple

from trainyard.settings.quantities import first_names
from trainyard.settings.suggestions import closest
from trainyard.steps.data.text.source_files import SourcePath, chunks, compression_of
from trainyard.steps.data.text.text_source import (
    BLOCK_BYTES,
    Block,
    RowsBlock,
    Text,
    TextFile,
    cut_before,
    utf8_as_it_was,
    without_byte_order_mark,
)
from trainyard.steps.runtime.errors import StepError, first_line
from trainyard.steps.runtime.imports import from_extra, require_packages

_LONGEST_LINE_BYTES = 1 << 28
"""A line can only be parsed as a whole."""
_MAY_BE_EMPTY_BYTES = 512
"""A compressed file without text still has a header, with its name in it."""
_MOST_ROWS = 4096
_DOCUMENTS_OF_ONE_FILE = 200
"""Enough to hold out a twentieth evenly."""
_LEAST_DOCUMENT_BYTES = 1 << 10
_LONGEST_LINE_KEPT_BYTES = 1 << 16


class FileAtPath(TextFile):
    """A file of text, plain or compressed; `text_field` is the field or column that holds the text."""

    def __init__(self, path: SourcePath, name: str, text_field: str) -> None:
        self._path, self._text_field = path, text_field
        self.name = name
        self.size_bytes = path.stat().st_size


class JsonLine(NamedTuple):
    """One object of a file of JSON lines: the name of its document, the file and line, and its fields."""

    name: str
    place: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class JsonLinesBlock(Block):
    """Some whole lines."""

    name: str
    data: bytes
    first_line: int
    text_field: str

    def lines(self, errors: str = "strict", parse_int: Callable[[str], Any] = int) -> Iterator[JsonLine]:
        """Yield what lines hold that are not blank. StepError for one that is not a JSON object."""
        for number, line in enumerate(self.data.split(b"\n"), start=self.first_line):
            if not line or line.isspace():
                continue
            place = f"{self.file}:{number}"
            try:
                found = json.loads(line.decode("utf-8", errors), parse_int=parse_int)
            except (ValueError, RecursionError) as failure:
                raise StepError(f"{place} is not valid JSON: {failure}") from None
            if not isinstance(found, dict):
                raise StepError(f"{place} is not a JSON object: {line[:60].decode(errors='replace')}")
            yield JsonLine(f"{self.name}:{number}", place, found)

    def texts(self) -> Iterator[Text]:
        """Yield the documents, each with the line as the place of any byte of it."""
        # Integers are parsed as floats, which have no limit on digits: no number is needed here.
        for name, place, fields in self.lines("surrogateescape", float):
            if self.text_field not in fields:
                raise StepError(f"{place}: {missing_field(self.text_field, list(fields))}")
            text = fields[self.text_field]
            if not isinstance(text, str | None):
                raise StepError(f"{place}: the field {self.text_field!r} is not text: {json.dumps(text)[:60]}")
            yield Text(name, utf8_as_it_was(text or ""), partial("{0}".format, place))


def missing_field(name: str, known: list[str]) -> str:
    """Return the message for a field that does not exist."""
    close = closest(name, known)
    meant = f"; did you mean --text-field {close}?" if close else ""
    return f"no field {name!r} (--text-field); found {first_names(known) or 'none'}{meant}"


class JsonLinesFile(FileAtPath):
    """A file of JSON objects."""

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


@dataclass(frozen=True)
class TextBlock(Block):
    """A part of a file that is one document."""

    document: str
    data: bytes
    offset: int
    ends_document: bool

    def texts(self) -> Iterator[Text]:
        """Yield the part."""
        yield Text(self.document, self.data, lambda at: f"{self.file}, byte {self.offset + at}", self.ends_document)


class PlainTextFile(FileAtPath):
    """A file that is one document."""

    def divided(self) -> DividedTextFile:
        """Return the same file as many documents."""
        return DividedTextFile(self._path, self.name, self._text_field)

    def documents(self) -> Iterator[str]:
        """Yield the file's own name, unless the file is empty."""
        if self.size_bytes > _MAY_BE_EMPTY_BYTES:
            yield self.name
        else:
            yield from super().documents()

    def blocks(self) -> Iterator[TextBlock]:
        """Yield the file cut into blocks."""
        waiting, number, offset, source_bytes = b"", 1, 0, 0
        for data, read in chunks(self._path):
            waiting += data
            source_bytes += read
            start = 0
            while stop := self._end(waiting, start):
                yield self._block(waiting[start:stop], number, offset, source_bytes, is_last=False)
                number, offset, start, source_bytes = number + 1, offset + stop - start, stop, 0
            waiting = waiting[start:]
        if waiting:
            yield self._block(waiting, number, offset, source_bytes, is_last=True)

    def _end(self, waiting: bytes, start: int) -> int:
        """Return where the block that starts there ends, between words; 0 while too little is read."""
        return cut_before(waiting, start, start + BLOCK_BYTES) if len(waiting) - start > BLOCK_BYTES else 0

    def _block(self, data: bytes, number: int, offset: int, source_bytes: int, *, is_last: bool) -> TextBlock:
        text = without_byte_order_mark(data, self._path) if offset == 0 else data
        return TextBlock(str(self._path), source_bytes, self.name, text, offset + len(data) - len(text), is_last)


class DividedTextFile(PlainTextFile):
    """A file that is all the text there is, divided at line ends into documents of about the same length."""

    @property
    def document_bytes(self) -> int:
        """How long a document is at least, but for the last."""
        return min(max(self.size_bytes // _DOCUMENTS_OF_ONE_FILE, _LEAST_DOCUMENT_BYTES), BLOCK_BYTES)

    def documents(self) -> Iterator[str]:
        """Yield the names of its documents."""
        return TextFile.documents(self)

    def _end(self, waiting: bytes, start: int) -> int:
        """Return where a document ends: after a line, or between words of a very long one."""
        longest = start + self.document_bytes + _LONGEST_LINE_KEPT_BYTES
        line_end = waiting.find(b"\n", start + self.document_bytes - 1, longest) + 1
        if not line_end and len(waiting) > longest:
            return cut_before(waiting, start, start + self.document_bytes)
        return line_end

    def _block(self, data: bytes, number: int, offset: int, source_bytes: int, *, is_last: bool) -> TextBlock:
        block = super()._block(data, number, offset, source_bytes, is_last=is_last)
        return replace(block, document=f"{self.name}:{number}", ends_document=True)


class ParquetFile(FileAtPath):
    """A table, compressed as a whole or not."""

    def blocks(self) -> Iterator[RowsBlock]:
        """Yield as many rows as make a block, reading only the column with the text."""
        require_packages(str(self._path), from_extra("train"), "pyarrow.parquet")
        import pyarrow
        from pyarrow import parquet

        try:
            with _seekable(self._path) as stream:
                # Without pre_buffer: it would hold a row group's whole column.
                table = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=BLOCK_BYTES)
                self._require_text(table.schema_arrow)
                row = 0
                per_row_bytes = self.size_bytes / max(table.metadata.num_rows, 1)
                for batch in table.iter_batches(_rows_per_block(table, self._text_field), columns=[self._text_field]):
                    # As stored: bytes that are not UTF-8 are found where all text is decoded.
                    texts = batch.column(0).cast(pyarrow.large_binary())
                    rows = tuple(
                        (f"{self.name}:{number}", value)
                        for number, value in enumerate(texts.to_pylist(), start=row + 1)
                        if value
                    )
                    yield RowsBlock(str(self._path), round(per_row_bytes * batch.num_rows), rows)
                    row += batch.num_rows
        except (pyarrow.ArrowException, OSError) as failure:
            if getattr(failure, "errno", None) is not None:
                raise
            raise StepError(f"{self._path} is not a valid parquet file: {first_line(failure)}") from None

    def _require_text(self, schema: Any) -> None:
        import pyarrow

        if self._text_field not in schema.names:
            raise StepError(f"{self._path}: {missing_field(self._text_field, schema.names)}")
        kind = schema.field(self._text_field).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        known = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "null")
        if str(kind) not in known:
            raise StepError(f"{self._path}: the column {self._text_field!r} is not text: {kind}")


@contextmanager
def _seekable(path: SourcePath) -> Iterator[IO[bytes]]:
    """Open the file; if it is compressed, a temporary file with its content, as a table is not read forwards."""
    if compression_of(path) is None:
        with path.open("rb") as stream:
            yield stream
        return
    with tempfile.TemporaryFile() as stream:
        for data, _ in chunks(path):
            stream.write(data)
        stream.seek(0)
        yield stream


def _rows_per_block(table: Any, column: str) -> int:
    """Return how many rows hold about a block of text, by the column's size in the file's metadata."""
    sizes = [
        chunk.total_uncompressed_size
        for group in range(table.metadata.num_row_groups)
        for chunk in (table.metadata.row_group(group).column(i) for i in range(table.metadata.num_columns))
        if chunk.path_in_schema == column
    ]
    row_bytes = sum(sizes) / max(table.metadata.num_rows, 1)
    return max(1, min(_MOST_ROWS, int(BLOCK_BYTES / max(row_bytes, 1))))
