"""Files of text, on a disk or at an address such as azureml://…, plain or compressed, as a stream of chunks."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, Literal, TypeAlias

from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.imports import from_extra, require_packages

COMPRESSIONS = (".gz", ".zst")
_READ_BYTES = 1 << 18
_ZSTD_READ_BYTES = 1 << 12
"""Small, because a few bytes can expand to 128 kB of text, and the result of one read lies in memory."""

_ZSTD_LARGEST_WINDOW_BYTES = 1 << 31
"""The largest that `zstd --long=31` writes."""


@dataclass(frozen=True)
class RemoteFile:
    """A file at an address, read as one on a disk is."""

    address: str
    size_bytes: int

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.address).name

    @property
    def suffix(self) -> str:
        """The name's ending, with its dot."""
        return PurePosixPath(self.address).suffix

    def __str__(self) -> str:
        return self.address

    def is_file(self) -> bool:
        """Whether it is a file: listed as one."""
        return True

    def stat(self) -> os.stat_result:
        """Return the size; all else is 0."""
        return os.stat_result((0, 0, 0, 0, 0, 0, self.size_bytes, 0, 0, 0))

    def open(self, mode: Literal["rb"], /) -> IO[bytes]:
        """Open the file for reading."""
        filesystem, path = filesystem_of(self.address)
        opened: IO[bytes] = filesystem.open(path, mode)
        return opened


SourcePath: TypeAlias = Path | RemoteFile


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
    require_packages(str(path), from_extra("train"), "zstandard")
    import zstandard

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


def filesystem_of(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path there. StepError if it cannot be opened."""
    require_packages(f"an address such as {address}", from_extra("spark"), "fsspec")
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(address)
    except (ImportError, ValueError) as failure:
        raise StepError(f"{address} cannot be opened: {failure}") from None
    return filesystem, str(path)
