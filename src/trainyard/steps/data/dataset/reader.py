"""Reading a dataset: any samples of a split, gathered from memory-mapped shards."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainyard.steps.data.dataset.manifest import ArrayType, Manifest, ValueLimit
from trainyard.steps.data.dataset.shards import Shard
from trainyard.steps.runtime.errors import StepError

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_FEW_FILES = 64

_MOST_MAPS_PER_ARRAY = 1 << 13
"""Linux allows a process 65,530 maps (vm.max_map_count); beyond this limit, the oldest is closed."""


class SplitReader:
    """The samples of one split by number. Each shard is mapped into memory on first use."""

    def __init__(self, folder: Path, manifest: Manifest, split: str) -> None:
        if split not in manifest.splits:
            available = ", ".join(manifest.splits)
            raise StepError(f"the dataset in {folder} has no split {split!r}; it has {available}")
        self.samples = manifest.splits[split].samples
        self.arrays = manifest.arrays
        self._folder, self._split = folder, split
        self._limits = {name: manifest.limit_of(name) for name in manifest.arrays}
        shards = manifest.splits[split].shards
        self._columns = {
            name: _Column(folder, [shard for shard in shards if shard.array == name], array)
            for name, array in manifest.arrays.items()
        }

    def gather(self, sample_ids: npt.NDArray[np.int64], into: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Return copies of the samples, in the given order, for each array; written `into` these arrays if given.

        StepError for a class or token that the dataset does not have: a GPU would only say that an assertion failed.
        """
        gathered = {}
        for name, column in self._columns.items():
            gathered[name] = column.new(len(sample_ids)) if into is None else into[name]
            column.gather(sample_ids, gathered[name])
            if (limit := self._limits[name]) is not None:
                self._require_within(name, gathered[name], limit, sample_ids)
        return gathered

    def _require_within(self, name: str, values: Array, limit: ValueLimit, sample_ids: npt.NDArray[np.int64]) -> None:
        if not values.size or (values.max() < limit.below and values.min() >= 0):
            return
        wrong = (values >= limit.below) | (values < 0)
        if limit.besides is not None:
            wrong &= values != limit.besides
        if wrong.any():
            first = np.argwhere(wrong)[0]
            raise StepError(
                f"{self._folder}: sample {sample_ids[first[0]]} of {self._split} has {values[tuple(first)]} among its "
                f"{name}, but the dataset has {limit.because_of}; prepare it again"
            )


class _Column:
    """One array of a split over all its shards."""

    def __init__(self, folder: Path, shards: list[Shard], array: ArrayType) -> None:
        self._files = [folder / shard.file for shard in shards]
        self._starts = np.cumsum([0, *(shard.samples for shard in shards)])
        self._dtype, self._shape = np.dtype(array.dtype).newbyteorder("<"), array.shape
        self._sample_bytes = array.sample_bytes
        self._maps: dict[int, Array] = {}

    def new(self, samples: int) -> Array:
        return np.empty((samples, *self._shape), dtype=self._dtype)

    def gather(self, sample_ids: npt.NDArray[np.int64], into: Array) -> None:
        if len(self._files) == 1:
            # Without mode="clip" numpy gathers into a buffer first, in case an index is invalid.
            np.take(self._map(0), sample_ids, axis=0, out=into, mode="clip")
            return
        shards = np.searchsorted(self._starts, sample_ids, side="right") - 1
        within = sample_ids - self._starts[shards]
        if len(self._files) > len(sample_ids) // 2:
            # Few samples share a shard: then one at a time is faster.
            for place, (shard, sample) in enumerate(zip(shards.tolist(), within.tolist(), strict=True)):
                into[place] = self._map(shard)[sample]
            return
        by_shard = np.argsort(shards, kind="stable")
        bounds = np.searchsorted(shards[by_shard], np.arange(len(self._files) + 1)).tolist()
        for shard, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                places = by_shard[start:stop]
                into[places] = np.take(self._map(shard), within[places], axis=0, mode="clip")

    def _map(self, shard: int) -> Array:
        mapped = self._maps.get(shard)
        if mapped is None:
            if len(self._maps) >= _MOST_MAPS_PER_ARRAY:
                del self._maps[next(iter(self._maps))]
            samples = int(self._starts[shard + 1] - self._starts[shard])
            map_file = _map_and_keep_open if len(self._files) <= _FEW_FILES else _map_and_close
            try:
                mapped_bytes = map_file(self._files[shard], samples * self._sample_bytes)
            except (RuntimeError, OSError, ValueError) as failure:
                raise StepError(f"{self._files[shard]} can no longer be mapped into memory: {failure}") from None
            mapped = self._maps[shard] = mapped_bytes.view(self._dtype).reshape(samples, *self._shape)
        return mapped


def _map_and_keep_open(file: Path, size_bytes: int) -> Bytes:
    """Map with numpy: any size, but each map keeps its file open, and a process is often limited to 1,024 files."""
    return np.asarray(np.memmap(file, dtype=np.uint8, mode="r", shape=(size_bytes,)))


def _map_and_close(file: Path, size_bytes: int) -> Bytes:
    """Map with torch: any number of files, but Linux refuses a map larger than the machine's memory."""
    array: Bytes = torch.from_file(str(file), shared=False, size=size_bytes, dtype=torch.uint8).numpy()
    array.flags.writeable = False
    return array
