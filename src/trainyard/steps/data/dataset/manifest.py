"""The manifest of a dataset: what the dataset holds, in which files, and the checks of a manifest's JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from trainyard.settings.typed_json import read_dataclass
from trainyard.steps.data.dataset.shards import Shard, require_sizes
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import read_json_object, sha256_of_json, write_json

MANIFEST_FILE = "manifest.json"
DATASET_FORMAT = "trainyard.dataset/1"


@dataclass(frozen=True)
class ArrayType:
    """What one sample has in one array: a numpy type name (little-endian) and the shape of a sample."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def sample_bytes(self) -> int:
        """The bytes of one sample."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class ValueLimit:
    """Which values an array of integers may hold: those from 0 up to the limit, and one more."""

    below: int
    because_of: str
    """What the dataset has, in words."""
    besides: int | None = None


@dataclass(frozen=True)
class Split:
    """One of train, validation, test; the shards of each array, in order, hold all of its samples."""

    samples: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class TokenText:
    """What the numbers in a dataset of tokens mean; `documents`, `tokens` and `text_bytes` are counts by split.

    `tokens` counts the tokens that are predicted, `text_bytes` the UTF-8 bytes of the text that they spell.
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
    """Where it was read from. Not written, because a dataset may be moved."""

    def write(self, folder: Path) -> None:
        """Write the manifest, the last of a dataset's files, with a digest of itself."""
        document = {"format": DATASET_FORMAT, **self._document()}
        write_json(folder / MANIFEST_FILE, {**document, "sha256": sha256_of_json(document)})

    def digest(self) -> str:
        """Return a SHA-256 of what identifies the samples, independent of where the dataset lies or came from."""
        return sha256_of_json({**self._document(), "source": None})

    def _document(self) -> dict[str, Any]:
        left_out = ("folder",) if self.text else ("folder", "text")
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    def limit_of(self, array: str) -> ValueLimit | None:
        """Return which values an array may hold, where the manifest says so: classes and tokens."""
        if array == "labels" and self.content == "labelled_images":
            return ValueLimit(len(self.classes), f"{len(self.classes)} classes")
        if array == "tokens" and self.text is not None:
            size = self.text.vocabulary_size
            return ValueLimit(size, f"a vocabulary of {size} tokens", self.text.padding)
        return None

    def shards(self) -> list[Shard]:
        """Return the shards of every split."""
        return [shard for split in self.splits.values() for shard in split.shards]


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the dataset in a folder, after checking the sizes of its files.

    Raise StepError naming what is invalid in the manifest, or the first file that is missing or has another size.
    `verify_dataset` checks the digests.
    """
    file = folder / MANIFEST_FILE
    if not file.is_file():
        raise StepError(f"{folder} is not a dataset: {MANIFEST_FILE}, which prepare steps write last, is missing")
    document = read_json_object(file, DATASET_FORMAT)
    try:
        manifest = _checked_manifest(document)
    except ValueError as error:
        raise StepError(f"{file} is not a valid manifest: {error}") from None
    require_sizes(folder, manifest.shards())
    return replace(manifest, folder=folder)


_SELF_DIGEST = "sha256"
"""The digest of the rest of a manifest. One made by another program may omit it."""

_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)
_LARGEST_VOCABULARY = (1 << 32) - 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


def _checked_manifest(document: dict[str, Any]) -> Manifest:
    """Return the manifest in a JSON document. ValueError for the first thing that is invalid."""
    written_digest = document.pop(_SELF_DIGEST, None)
    if written_digest not in (None, sha256_of_json(document)):
        raise ValueError(f"it was altered: the SHA-256 of the rest of it differs from its {_SELF_DIGEST!r}")
    del document["format"]
    manifest = read_dataclass(Manifest, document, "manifest")
    if manifest.text is not None:
        _check_text(manifest.text, manifest.splits)
    for name, array in manifest.arrays.items():
        _check_array(array, f"arrays.{name}")
    places_of_files: dict[str, str] = {}
    for name, split in manifest.splits.items():
        _check_split(split, manifest.arrays, f"splits.{name}", places_of_files)
    return manifest


def _check_text(text: TokenText, splits: Mapping[str, Split]) -> None:
    if not 0 <= text.end_of_text < text.vocabulary_size <= _LARGEST_VOCABULARY:
        raise ValueError(
            f"text.end_of_text is {text.end_of_text} and text.vocabulary_size {text.vocabulary_size}; expected "
            f"0 to vocabulary_size - 1, and at most {_LARGEST_VOCABULARY}"
        )
    for name, counts in (("documents", text.documents), ("tokens", text.tokens), ("text_bytes", text.text_bytes)):
        if lacking := [split for split in splits if split not in counts]:
            raise ValueError(f"text.{name} lacks {lacking[0]!r}")


def _check_array(array: ArrayType, where: str) -> None:
    if array.dtype not in _DTYPES:
        raise ValueError(f"{where}.dtype is {array.dtype!r}; expected one of {', '.join(_DTYPES)}")
    if not all(side >= 1 for side in array.shape):
        raise ValueError(f"{where}.shape is {list(array.shape)}; expected a list of integers from 1")


def _check_split(split: Split, arrays: Mapping[str, ArrayType], where: str, places_of_files: dict[str, str]) -> None:
    if split.samples < 1:
        raise ValueError(f"{where}.samples is {split.samples}; expected at least 1")
    found = dict.fromkeys(arrays, 0)
    for number, shard in enumerate(split.shards):
        place = f"{where}.shards[{number}]"
        _check_shard(shard, arrays, place)
        found[shard.array] += shard.samples
        earlier = places_of_files.setdefault(str(PurePosixPath(shard.file)), place)
        if earlier != place:
            raise ValueError(f"{place}.file {shard.file} is also the file of {earlier}")
    for name, samples in found.items():
        if samples != split.samples:
            raise ValueError(f"{where}.samples is {split.samples}, but its shards of {name} add up to {samples}")


def _check_shard(shard: Shard, arrays: Mapping[str, ArrayType], where: str) -> None:
    if shard.array not in arrays:
        raise ValueError(f"{where}.array is {shard.array!r}; expected one of {', '.join(arrays)}")
    parts = PurePosixPath(shard.file).parts
    # Within the folder, so that the dataset can be moved and reads nothing else.
    if not parts or shard.file.startswith("/") or ".." in parts or "\\" in shard.file or ":" in parts[0]:
        raise ValueError(f"{where}.file is {shard.file!r}; expected a path within the dataset's folder")
    if shard.samples < 1:
        raise ValueError(f"{where}.samples is {shard.samples}; expected at least 1")
    array = arrays[shard.array]
    expected_bytes = shard.samples * array.sample_bytes
    if shard.bytes != expected_bytes:
        raise ValueError(
            f"{where}.bytes is {shard.bytes}, but {shard.samples} samples of {array.dtype} {list(array.shape)} are "
            f"{expected_bytes}"
        )
    if not _SHA256.fullmatch(shard.sha256):
        raise ValueError(f"{where}.sha256 is not a SHA-256: {shard.sha256!r}")
