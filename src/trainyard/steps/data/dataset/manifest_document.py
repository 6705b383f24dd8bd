"""What a manifest's JSON must say before anything is believed of it: fields, types, and sums that add up."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

DATASET_FORMAT = "trainyard.dataset/1"

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
"""The fields of each kind of object, all needed, and no others."""

_SELF_DIGEST = "sha256"
"""Of a manifest, over the rest of it. A manifest made by other means may go without."""

_DTYPES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64"),
)
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ManifestMistake(ValueError):
    """What in a manifest cannot be, and where."""


def document_sha256(document: Mapping[str, Any]) -> str:
    """The SHA-256 of a JSON document, however its text is laid out."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def check_manifest_document(document: dict[str, Any]) -> None:
    """Raise ManifestMistake for the first thing that cannot be."""
    rest = {name: value for name, value in document.items() if name != _SELF_DIGEST}
    if _SELF_DIGEST in document and document[_SELF_DIGEST] != document_sha256(rest):
        raise ManifestMistake(f"it was altered: the SHA-256 over the rest of it is not its own {_SELF_DIGEST!r}")
    if "text" in rest:
        _check_text(rest.pop("text"), document.get("splits"))
    _require_fields("manifest", rest, "the manifest")
    if not all(isinstance(name, str) for name in document["classes"]):
        raise ManifestMistake("classes are not all names")
    for name, array in document["arrays"].items():
        _check_array(array, f"arrays.{name}")
    places_of_files: dict[str, str] = {}
    for name, split in document["splits"].items():
        _check_split(split, document["arrays"], f"splits.{name}", places_of_files)


def _check_text(text: Any, splits: Any) -> None:
    _require_fields("text", text, "text")
    for name in ("documents", "tokens", "text_bytes"):
        for split in splits if isinstance(splits, dict) else ():
            if not _is_whole(text[name].get(split)):
                raise ManifestMistake(f"text.{name} has no whole number for {split}")


def _check_array(array: Any, where: str) -> None:
    _require_fields("array", array, where)
    if array["dtype"] not in _DTYPES:
        raise ManifestMistake(f"{where}.dtype is {array['dtype']!r}; there is {', '.join(_DTYPES)}")
    if not all(_is_whole(side) and side >= 1 for side in array["shape"]):
        raise ManifestMistake(f"{where}.shape is {array['shape']}; it is a list of whole numbers from 1")


def _check_split(split: Any, arrays: Mapping[str, Any], where: str, places_of_files: dict[str, str]) -> None:
    _require_fields("split", split, where)
    if split["samples"] < 1:
        raise ManifestMistake(f"{where}.samples is {split['samples']}; a split has at least one")
    found = dict.fromkeys(arrays, 0)
    for number, shard in enumerate(split["shards"]):
        place = f"{where}.shards[{number}]"
        _check_shard(shard, arrays, place)
        found[shard["array"]] += shard["samples"]
        earlier = places_of_files.setdefault(str(PurePosixPath(shard["file"])), place)
        if earlier != place:
            raise ManifestMistake(f"{place}.file {shard['file']} is also {earlier}'s: shards must not overlap")
    for name, samples in found.items():
        if samples != split["samples"]:
            raise ManifestMistake(
                f"{where}.samples is {split['samples']}, but its shards of {name} add up to {samples}"
            )


def _check_shard(shard: Any, arrays: Mapping[str, Any], where: str) -> None:
    _require_fields("shard", shard, where)
    if shard["array"] not in arrays:
        raise ManifestMistake(f"{where}.array is {shard['array']!r}; there is {', '.join(arrays)}")
    _check_file_name(shard["file"], where)
    if shard["samples"] < 1:
        raise ManifestMistake(f"{where}.samples is {shard['samples']}; a shard has at least one")
    array = arrays[shard["array"]]
    expected_bytes = shard["samples"] * np.dtype(array["dtype"]).itemsize * math.prod(array["shape"])
    if shard["bytes"] != expected_bytes:
        raise ManifestMistake(
            f"{where}.bytes is {shard['bytes']}, but {shard['samples']} samples of "
            f"{array['dtype']} {array['shape']} are {expected_bytes}"
        )
    if not _SHA256.fullmatch(shard["sha256"]):
        raise ManifestMistake(f"{where}.sha256 is no SHA-256: {shard['sha256']!r}")


def _check_file_name(file: str, where: str) -> None:
    """A dataset is read from wherever it lies, and from nowhere else."""
    parts = PurePosixPath(file).parts
    if not parts or file.startswith("/") or ".." in parts or "\\" in file or ":" in parts[0] or "\0" in file:
        raise ManifestMistake(f"{where}.file is {file!r}; it must lie in the dataset's folder")


def _require_fields(kind: str, value: Any, where: str) -> None:
    fields = _FIELDS[kind]
    if not isinstance(value, dict):
        raise ManifestMistake(f"{where} is no object with {', '.join(fields)}")
    for name in fields:
        if name not in value:
            raise ManifestMistake(f"{where} has no {name!r}")
    for name, found in value.items():
        if name not in fields:
            raise ManifestMistake(f"{where} has {name!r}, which is no field of a {kind}")
        if not isinstance(found, fields[name]) or isinstance(found, bool):
            raise ManifestMistake(f"{where}.{name} is {found!r} where {_WORDS[fields[name]]} belongs")


_WORDS: Mapping[type, str] = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
