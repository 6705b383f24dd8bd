"""Tables with one document per row: .parquet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from trainyard.steps.data.text.compression import SourcePath, chunks, compression_of
from trainyard.steps.data.text.json_lines import missing_field
from trainyard.steps.data.text.source import BLOCK_BYTES, RowsBlock, TextFile
from trainyard.steps.runtime.errors import StepError

_MOST_ROWS = 4096


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
