"""Writing a dataset: blocks of samples, cut into shards, and a manifest written last."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from trainyard.settings.files import os_errors_name
from trainyard.steps.data.dataset.manifest import MANIFEST_FILE, ArrayType, Manifest, Split, TokenText
from trainyard.steps.data.dataset.shards import Shard

_SHARD_NAME = re.compile(r"(train|validation|test)-\d{5,}\.\w+\.bin")
"""Only files with such a name are ever removed: the folder may hold other files."""


class DatasetWriter:
    """Writes one dataset into a folder; a context manager that removes the dataset's files after an error.

    When several processes write one dataset, one of them clears the folder first and calls `finish` last.
    """

    def __init__(
        self, folder: Path, arrays: Mapping[str, ArrayType], shard_samples: int, *, clears_folder: bool = True
    ) -> None:
        self.folder, self.arrays, self.shard_samples = folder, arrays, shard_samples
        self._clears_folder = clears_folder
        self._splits: dict[str, Split] = {}

    def __enter__(self) -> DatasetWriter:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._clears_folder:
            self._remove_all()
        return self

    def __exit__(self, exception_type: object, *_: object) -> None:
        if exception_type is not None:
            self._remove_all()

    def split(self, name: str) -> SplitWriter:
        """Return a writer for one split. Splits are written one after the other."""
        return SplitWriter(self, name)

    def shard(self, split: str, number: int, array: str) -> ShardFile:
        """Return a file for one array of one shard, for callers that cut shards without a `SplitWriter`."""
        return ShardFile(self.folder, split, number, array, self.arrays[array])

    def add_split(self, name: str, split: Split) -> None:
        """Add a split whose shards are written."""
        self._splits[name] = split

    def finish(
        self, content: str, classes: Sequence[str], source: Mapping[str, Any], text: TokenText | None = None
    ) -> Manifest:
        """Write the manifest, which makes the folder a dataset, and return it."""
        manifest = Manifest(content, self.arrays, self._splits, tuple(classes), source, text)
        manifest.write(self.folder)
        return manifest

    def _remove_all(self) -> None:
        """Remove the manifest first, so that a partly overwritten dataset is never taken for a complete one."""
        (self.folder / MANIFEST_FILE).unlink(missing_ok=True)
        for file in self.folder.iterdir():
            if _SHARD_NAME.fullmatch(file.name):
                file.unlink(missing_ok=True)  # another process of the same failed write may remove it too


class SplitWriter:
    """Takes blocks of samples of any length and cuts them into shards of the dataset's length."""

    def __init__(self, dataset: DatasetWriter, name: str) -> None:
        self._dataset, self._name = dataset, name
        self._shards: list[Shard] = []
        self._open: dict[str, ShardFile] = {}
        self._samples = 0

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(self, exception_type: object, *_: object) -> None:
        self._close_shards()
        if exception_type is None and self._samples:
            self._dataset.add_split(self._name, Split(self._samples, tuple(self._shards)))

    def add(self, block: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add samples: the same number of elements for each array of the dataset."""
        assert block.keys() == self._dataset.arrays.keys()
        (length,) = {len(values) for values in block.values()}
        start = 0
        while start < length:
            number, filled = divmod(self._samples, self._dataset.shard_samples)
            if not filled:
                self._close_shards()
                self._open = {array: self._dataset.shard(self._name, number, array) for array in self._dataset.arrays}
            stop = min(length, start + self._dataset.shard_samples - filled)
            for array, values in block.items():
                self._open[array].add(values[start:stop])
            self._samples += stop - start
            start = stop

    def _close_shards(self) -> None:
        self._shards += [shard.close() for shard in self._open.values()]
        self._open = {}


class ShardFile:
    """One shard being written, and the running digest of its bytes."""

    def __init__(self, folder: Path, split: str, number: int, array: str, array_type: ArrayType) -> None:
        file = folder / f"{split}-{number:05d}.{array}.bin"
        self._file, self._array, self._type = file, array, array_type
        self._dtype = np.dtype(array_type.dtype).newbyteorder("<")
        self._stream: IO[bytes] = file.open("wb", buffering=0)
        self._digest = hashlib.sha256()
        self.samples = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        """Append samples."""
        assert values.shape[1:] == self._type.shape
        data = np.ascontiguousarray(values, dtype=self._dtype).data.cast("B")
        self._digest.update(data)
        written = 0
        while written < len(data):
            with os_errors_name(self._file):
                written += self._stream.write(data[written:])
        self.samples += len(values)

    def close(self) -> Shard:
        """Close the file and return its entry for the manifest."""
        self._stream.close()
        size_bytes = self.samples * self._type.sample_bytes
        return Shard(self._array, self._file.name, self.samples, size_bytes, self._digest.hexdigest())


def settings_named(settings: object, *names: str) -> dict[str, Any]:
    """Return some of the settings that made a dataset: enough to make it again, without paths of this machine."""
    return {name: getattr(settings, name) for name in names}
