"""The manifest of a dataset: what it holds, in which files, and whether those files are what was written."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainyard.steps.errors import StepError
from trainyard.steps.json_files import read_json_object, write_json

MANIFEST_FILE = "manifest.json"
DATASET_FORMAT = "trainyard.dataset/1"
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class ArrayType:
    """What one sample has in one array: a numpy type name (little-endian) and the shape of a sample."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def sample_bytes(self) -> int:
        """The bytes of one sample."""
        import numpy

        return numpy.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class Shard:
    """One file: a stretch of the samples of one array."""

    array: str
    file: str
    samples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """One of train, validation, test: its shards in order, array by array covering the same samples."""

    samples: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Manifest:
    """A dataset's description; `content` says what its samples are, such as `labelled_images`."""

    content: str
    arrays: Mapping[str, ArrayType]
    splits: Mapping[str, Split]
    classes: tuple[str, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write it as the last of a dataset's files."""
        write_json(folder / MANIFEST_FILE, {"format": DATASET_FORMAT, **asdict(self)})

    def digest(self) -> str:
        """A SHA-256 over what the samples are and say, wherever the dataset lies."""
        text = json.dumps({**asdict(self), "source": None}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path, *, check_digests: bool = False) -> Manifest:
    """Read a dataset's manifest and hold its files to it: sizes always, digests on request.

    Raises StepError naming the first file that is missing, has another size, or (on request) another digest.
    """
    file = folder / MANIFEST_FILE
    if not file.is_file():
        raise StepError(f"{folder} holds no dataset: there is no {MANIFEST_FILE} in it, a prepare step's last file")
    document = read_json_object(file, DATASET_FORMAT)
    try:
        manifest = _parse(document)
    except (KeyError, TypeError, AttributeError) as failure:
        raise StepError(f"{file} is not a manifest that a prepare step wrote: {failure!r}") from None
    for split in manifest.splits.values():
        for shard in split.shards:
            _check_shard(folder / shard.file, shard, check_digests)
    return manifest


def _parse(document: dict[str, Any]) -> Manifest:
    return Manifest(
        content=document["content"],
        arrays={name: ArrayType(array["dtype"], tuple(array["shape"])) for name, array in document["arrays"].items()},
        splits={
            name: Split(split["samples"], tuple(Shard(**shard) for shard in split["shards"]))
            for name, split in document["splits"].items()
        },
        classes=tuple(document["classes"]),
        source=document["source"],
    )


def _check_shard(file: Path, shard: Shard, check_digest: bool) -> None:
    if not file.is_file():
        raise StepError(f"{file} is missing: the dataset's manifest names it")
    found_bytes = file.stat().st_size
    if found_bytes != shard.bytes:
        raise StepError(f"{file} has {found_bytes} bytes where the dataset's manifest says {shard.bytes}")
    if check_digest and file_sha256(file) != shard.sha256:
        raise StepError(f"{file} is not what was written: its SHA-256 differs from the dataset's manifest")


def file_sha256(file: Path) -> str:
    """The SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()
