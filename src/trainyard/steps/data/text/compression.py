"""Reading files, plain or compressed with gzip or Zstandard, as a stream of chunks."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import PurePath
from typing import IO, Literal, Protocol

from trainyard.steps.runtime.errors import StepError

COMPRESSIONS = (".gz", ".zst")
_READ_BYTES = 1 << 18
_ZSTD_READ_BYTES = 1 << 12
"""Small, because a few bytes can expand to 128 kB of text, and the result of one read lies in memory."""

_ZSTD_LARGEST_WINDOW_BYTES = 1 << 31
"""The largest that `zstd --long=31` writes."""


class SourcePath(Protocol):
    """What is needed of a file's path: `Path` is one, and so is a file at an address."""

    @property
    def name(self) -> str:
        """The last part."""

    @property
    def suffix(self) -> str:
        """The name's ending, with its dot."""

    def is_file(self) -> bool:
        """Whether it is a file."""

    def stat(self) -> os.stat_result:
        """The status of the file, of which only the size is used."""

    def open(self, mode: Literal["rb"], /) -> IO[bytes]:
        """Open the file for reading."""


def compression_of(path: PurePath | SourcePath) -> str | None:
    """Return the ending that says how a file is compressed, or None for a plain file."""
    ending = path.suffix.lower()
    return ending if ending in COMPRESSIONS else None


def chunks(path: SourcePath) -> Iterator[tuple[bytes, int]]:
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


def _from_zstd(raw: IO[bytes], path: SourcePath) -> Iterator[tuple[bytes, int]]:
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
