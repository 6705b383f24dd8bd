"""The manifest of a dataset: what it holds, and in which files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trainyard.steps.data.dataset.manifest_document import (
    DATASET_FORMAT,
    ManifestMistake,
    check_manifest_document,
    document_sha256,
)
from trainyard.steps.data.dataset.shard_files import require_sizes
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import read_json_object, write_json

MANIFEST_FILE = "manifest.json"


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
class TokenText:
    """What the numbers in a dataset of tokens mean. `documents`, `tokens` and `text_bytes` are counted per split.

    `tokens` counts what is predicted; `text_bytes` is the text, in UTF-8, that these tokens spell.
    """

    vocabulary_size: int
    end_of_text: int
    padding: int
    tokenizer_sha256: str
    documents: Mapping[str, int]
    tokens: Mapping[str, int]
    text_bytes: Mapping[str, int]


@dataclass(frozen=True)
class Manifest:
    """A dataset's description; `content` says what its samples are, such as `labelled_images`."""

    content: str
    arrays: Mapping[str, ArrayType]
    splits: Mapping[str, Split]
    classes: tuple[str, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    text: TokenText | None = None
    folder: Path | None = field(default=None, compare=False)
    """Where it was read from; not written, because a dataset may be moved."""

    def write(self, folder: Path) -> None:
        """Write it as the last of a dataset's files, with a digest of itself."""
        document = {"format": DATASET_FORMAT, **self._document()}
        write_json(folder / MANIFEST_FILE, {**document, "sha256": document_sha256(document)})

    def digest(self) -> str:
        """A SHA-256 over what the samples are and say, wherever the dataset lies."""
        return document_sha256({**self._document(), "source": None})

    def _document(self) -> dict[str, Any]:
        left_out = ("folder",) if self.text else ("folder", "text")
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def shards(self) -> list[Shard]:
        """The shards of every split."""
        return [shard for split in self.splits.values() for shard in split.shards]


def read_manifest(folder: Path) -> Manifest:
    """Read a dataset's manifest and hold the sizes of its files to it; for digests, see `verify_dataset`.

    Raises StepError naming what in the manifest cannot be, or the first file that is missing or has another size.
    """
    file = folder / MANIFEST_FILE
    if not file.is_file():
        raise StepError(f"{folder} holds no dataset: there is no {MANIFEST_FILE} in it, a prepare step's last file")
    document = read_json_object(file, DATASET_FORMAT)
    try:
        check_manifest_document(document)
    except ManifestMistake as mistake:
        raise StepError(f"{file} is not a manifest that a prepare step wrote: {mistake}") from None
    manifest = replace(_from_document(document), folder=folder)
    require_sizes(folder, manifest.shards())
    return manifest


def _from_document(document: dict[str, Any]) -> Manifest:
    return Manifest(
        content=document["content"],
        arrays={name: ArrayType(array["dtype"], tuple(array["shape"])) for name, array in document["arrays"].items()},
        splits={
            name: Split(split["samples"], tuple(Shard(**shard) for shard in split["shards"]))
            for name, split in document["splits"].items()
        },
        classes=tuple(document["classes"]),
        source=document["source"],
        text=TokenText(**document["text"]) if "text" in document else None,
    )
