"""The manifest of a dataset: what the dataset holds, in which files, and the checks of a manifest's JSON."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from trainyard.steps.data.dataset.shards import Shard, require_sizes
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.files import read_json_object, write_json

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
        write_json(folder / MANIFEST_FILE, {**document, "sha256": _sha256_of(document)})

    def digest(self) -> str:
        """Return a SHA-256 of what identifies the samples, independent of where the dataset lies or came from."""
        return _sha256_of({**self._document(), "source": None})

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
        _check_document(document)
    except _InvalidManifest as error:
        raise StepError(f"{file} is not a valid manifest: {error}") from None
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


_FIELDS: Mapping[str, Mapping[str, type]] = {
    "manifest": {"format": str, "content": str, "arrays": dict, "splits": dict, "classes": list, "source": dict},
    "text": {
        "vocabulary_size": int,
        "end_of_text": int,
        "padding": int,
        "tokenizer_sha256": str,
        "documents": dict,
        "tokens": dict,
        "text_bytes": dict,
    },
    "array": {"dtype": str, "shape": list},
    "split": {"samples": int, "shards": list},
    "shard": {"array": str, "file": str, "samples": int, "bytes": int, "sha256": str},
}
"""The fields of each kind of object: all are required, and no others are allowed."""

_SELF_DIGEST = "sha256"
"""The digest of the rest of a manifest. One made by another program may omit it."""

_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)
_LARGEST_VOCABULARY = (1 << 32) - 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


class _InvalidManifest(ValueError):
    """What is invalid in a manifest, and where."""


def _sha256_of(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON document, independent of its layout as text."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _check_document(document: dict[str, Any]) -> None:
    """Raise _InvalidManifest for the first thing that is invalid."""
    rest = {name: value for name, value in document.items() if name != _SELF_DIGEST}
    if _SELF_DIGEST in document and document[_SELF_DIGEST] != _sha256_of(rest):
        raise _InvalidManifest(f"it was altered: the SHA-256 of the rest of it differs from its {_SELF_DIGEST!r}")
    if "text" in rest:
        _check_text(rest.pop("text"), document.get("splits"))
    _require_fields("manifest", rest, "manifest")
    if not all(isinstance(name, str) for name in document["classes"]):
        raise _InvalidManifest("classes must be a list of names")
    for name, array in document["arrays"].items():
        _check_array(array, f"arrays.{name}")
    places_of_files: dict[str, str] = {}
    for name, split in document["splits"].items():
        _check_split(split, document["arrays"], f"splits.{name}", places_of_files)


def _check_text(text: Any, splits: Any) -> None:
    _require_fields("text", text, "text")
    if not 0 <= text["end_of_text"] < text["vocabulary_size"] <= _LARGEST_VOCABULARY:
        raise _InvalidManifest(
            f"text.end_of_text is {text['end_of_text']} and text.vocabulary_size {text['vocabulary_size']}; expected "
            f"0 to vocabulary_size - 1, and at most {_LARGEST_VOCABULARY}"
        )
    for name in ("documents", "tokens", "text_bytes"):
        for split in splits if isinstance(splits, dict) else ():
            if not _is_integer(text[name].get(split)):
                raise _InvalidManifest(f"text.{name}.{split} must be an integer")


def _check_array(array: Any, where: str) -> None:
    _require_fields("array", array, where)
    if array["dtype"] not in _DTYPES:
        raise _InvalidManifest(f"{where}.dtype is {array['dtype']!r}; expected one of {', '.join(_DTYPES)}")
    if not all(_is_integer(side) and side >= 1 for side in array["shape"]):
        raise _InvalidManifest(f"{where}.shape is {array['shape']}; expected a list of integers from 1")


def _check_split(split: Any, arrays: Mapping[str, Any], where: str, places_of_files: dict[str, str]) -> None:
    _require_fields("split", split, where)
    if split["samples"] < 1:
        raise _InvalidManifest(f"{where}.samples is {split['samples']}; expected at least 1")
    found = dict.fromkeys(arrays, 0)
    for number, shard in enumerate(split["shards"]):
        place = f"{where}.shards[{number}]"
        _check_shard(shard, arrays, place)
        found[shard["array"]] += shard["samples"]
        earlier = places_of_files.setdefault(str(PurePosixPath(shard["file"])), place)
        if earlier != place:
            raise _InvalidManifest(f"{place}.file {shard['file']} is also the file of {earlier}")
    for name, samples in found.items():
        if samples != split["samples"]:
            raise _InvalidManifest(
                f"{where}.samples is {split['samples']}, but its shards of {name} add up to {samples}"
            )


def _check_shard(shard: Any, arrays: Mapping[str, Any], where: str) -> None:
    _require_fields("shard", shard, where)
    if shard["array"] not in arrays:
        raise _InvalidManifest(f"{where}.array is {shard['array']!r}; expected one of {', '.join(arrays)}")
    _check_file_name(shard["file"], where)
    if shard["samples"] < 1:
        raise _InvalidManifest(f"{where}.samples is {shard['samples']}; expected at least 1")
    array = arrays[shard["array"]]
    expected_bytes = shard["samples"] * np.dtype(array["dtype"]).itemsize * math.prod(array["shape"])
    if shard["bytes"] != expected_bytes:
        raise _InvalidManifest(
            f"{where}.bytes is {shard['bytes']}, but {shard['samples']} samples of "
            f"{array['dtype']} {array['shape']} are {expected_bytes}"
        )
    if not _SHA256.fullmatch(shard["sha256"]):
        raise _InvalidManifest(f"{where}.sha256 is not a SHA-256: {shard['sha256']!r}")


def _check_file_name(file: str, where: str) -> None:
    """A shard must lie within the dataset's folder, so that the dataset can be moved and reads nothing else."""
    parts = PurePosixPath(file).parts
    if not parts or file.startswith("/") or ".." in parts or "\\" in file or ":" in parts[0] or "\0" in file:
        raise _InvalidManifest(f"{where}.file is {file!r}; expected a path within the dataset's folder")


def _require_fields(kind: str, value: Any, where: str) -> None:
    fields = _FIELDS[kind]
    if not isinstance(value, dict):
        raise _InvalidManifest(f"{where} must be an object with {', '.join(fields)}")
    for name in fields:
        if name not in value:
            raise _InvalidManifest(f"{where} lacks {name!r}")
    for name, found in value.items():
        if name not in fields:
            raise _InvalidManifest(f"{where} has an unknown field {name!r}")
        if not isinstance(found, fields[name]) or isinstance(found, bool):
            raise _InvalidManifest(f"{where}.{name} is {found!r}; expected {_WORDS[fields[name]]}")


_WORDS: Mapping[type, str] = {str: "a string", int: "an integer", list: "a list", dict: "an object"}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
