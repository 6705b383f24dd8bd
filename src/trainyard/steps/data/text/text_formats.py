"""Files of text: .txt and .md are one document each, .jsonl has one per line, .parquet one per row."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from trainyard.steps.data.text.compression import SourcePath, chunks, compression_of
from trainyard.steps.data.text.text_source import (
    BLOCK_BYTES,
    Block,
    Piece,
    RowsBlock,
    TextFile,
    cut_before,
    document_pieces,
    first_names,
    utf8_as_it_was,
    without_byte_order_mark,
)
from trainyard.steps.runtime.errors import StepError

_LONGEST_LINE_BYTES = 1 << 28
"""A line can only be parsed as a whole."""
_MAY_BE_EMPTY_BYTES = 512
"""A compressed file without text still has a header, with its name in it."""
_MOST_ROWS = 4096


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


class ParquetFile(TextFile):
    """A table, plain or compressed as a whole."""

    def __init__(self, path: SourcePath, name: str, text_field: str) -> None:
        self._path, self._text_field = path, text_field
        self.name = name
        self.size_bytes = path.stat().st_size

    def blocks(self) -> Iterator[RowsBlock]:
        """Yield as many rows as make a block, reading only the column with the text."""
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as failure:
            raise StepError(f"{self._path} needs the package pyarrow: {failure}") from None

        try:
            with _seekable(self._path) as stream:
                # Without pre_buffer: it would hold a row group's whole column.
                table = parquet.ParquetFile(stream, pre_buffer=False, buffer_size=BLOCK_BYTES)
                self._require_text(table.schema_arrow)
                row = 0
                per_row_bytes = self.size_bytes / max(table.metadata.num_rows, 1)
                for batch in table.iter_batches(_rows_per_block(table, self._text_field), columns=[self._text_field]):
                    texts = tuple(
                        (f"{self.name}:{number}", value)
                        for number, value in enumerate(_as_bytes(batch.column(0)), start=row + 1)
                        if value
                    )
                    yield RowsBlock(str(self._path), round(per_row_bytes * batch.num_rows), texts)
                    row += batch.num_rows
        except pyarrow.ArrowException as failure:
            raise StepError(f"{self._path} is not a valid parquet file: {_first_line(failure)}") from None
        except OSError as failure:
            if failure.errno is not None:
                raise
            raise StepError(f"{self._path} is not a valid parquet file: {_first_line(failure)}") from None

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


def _as_bytes(column: Any) -> list[bytes | None]:
    """Return the texts as stored: bytes that are not UTF-8 are found where all text is decoded."""
    import pyarrow

    texts: list[bytes | None] = column.cast(pyarrow.large_binary()).to_pylist()
    return texts


def _first_line(failure: BaseException) -> str:
    return next(iter(str(failure).splitlines()), type(failure).__name__)
