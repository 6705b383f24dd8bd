"""Reading files, plain or compressed with gzip or Zstandard, as a stream of chunks."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from trainyard.steps.runtime.errors import StepError

COMPRESSIONS = (".gz", ".zst")
_READ_BYTES = 1 << 18
_ZSTD_READ_BYTES = 1 << 12
"""Small, because a few bytes can expand to 128 kB of text, and the result of one read lies in memory."""

_ZSTD_LARGEST_WINDOW_BYTES = 1 << 31
"""The largest that `zstd --long=31` writes."""


def compression_of(path: Path) -> str | None:
    """Return the ending that says how a file is compressed, or None for a plain file."""
    ending = path.suffix.lower()
    return ending if ending in COMPRESSIONS else None


def chunks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield successive chunks of a file's content, each with the number of bytes of the file read for it.

    Raise StepError for compressed data that is corrupt or truncated.
    """
    with path.open("rb") as raw:
        try:
            if compression_of(path) == ".gz":
                yield from _from_gzip(raw)
            elif compression_of(path) == ".zst":
                yield from _from_zstd(raw, path)
            else:
                while data := raw.read(_READ_BYTES):
                    yield data, len(data)
        except (gzip.BadGzipFile, EOFError, zlib.error) as failure:
            raise StepError(f"{path} is not valid gzip data: {failure}") from None


def _from_gzip(raw: IO[bytes]) -> Iterator[tuple[bytes, int]]:
    position = 0
    with gzip.GzipFile(fileobj=raw) as stream:
        while data := stream.read(_READ_BYTES):
            yield data, raw.tell() - position
            position = raw.tell()


def _from_zstd(raw: IO[bytes], path: Path) -> Iterator[tuple[bytes, int]]:
    try:
        import zstandard
    except ImportError as failure:
        raise StepError(f"{path} needs the package zstandard: {failure}") from None

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_LARGEST_WINDOW_BYTES)
    frame = None
    try:
        while data := raw.read(_ZSTD_READ_BYTES):
            read = len(data)
            while data:
                frame = frame or decompressor.decompressobj()
                yield frame.decompress(data), read
                data, read = frame.unused_data if frame.eof else b"", 0
                frame = None if frame.eof else frame
    except zstandard.ZstdError as failure:
        raise StepError(f"{path} is not valid Zstandard data: {failure}") from None
    if frame is not None:
        raise StepError(f"{path} is not valid Zstandard data: it ends in the middle")
