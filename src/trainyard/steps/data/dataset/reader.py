"""Reading a dataset: any samples of a split, gathered from memory-mapped shards, or each row by a request of its own.

A page of a mounted store that a map touches is fetched while Python's lock is held, and everything waits; requests are
made by several threads at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.dataset.manifest import ArrayType, Manifest, ValueLimit
from trainyard.steps.data.dataset.shards import Shard
from trainyard.steps.data.sample_order import SampleOrder
from trainyard.steps.runtime.errors import StepError

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
CopyOf = Callable[[Shard], "Path | None"]
"""Returns a shard's copy on a faster disk, if there is one at that moment."""

_FEW_FILES = 64

_MOST_MAPS_PER_ARRAY = 1 << 13
"""Linux allows a process 65,530 maps (vm.max_map_count); beyond this limit, the oldest is closed."""
_MOST_OPEN_FILES = 256
"""A process may often have only 1,024."""


class SplitReader:
    """The samples of one split by number. Each shard is mapped into memory on first use."""

    def __init__(self, folder: Path, manifest: Manifest, split: str, copy_of: CopyOf | None = None) -> None:
        """With `copy_of` rows are read by requests of their own, from the copies that it returns, not through maps."""
        if split not in manifest.splits:
            available = ", ".join(manifest.splits)
            raise StepError(f"the dataset in {folder} has no split {split!r}; it has {available}")
        self.samples = manifest.splits[split].samples
        self.arrays = manifest.arrays
        self._folder, self._split = folder, split
        self._limits = {name: manifest.limit_of(name) for name in manifest.arrays}
        shards = manifest.splits[split].shards
        self._columns = {
            name: _Column(folder, [shard for shard in shards if shard.array == name], array, copy_of)
            for name, array in manifest.arrays.items()
        }

    @property
    def stored_samples(self) -> int:
        """How many different samples there are, as many as an epoch has."""
        return self.samples

    def order(self, seed: int, epoch: int) -> SampleOrder:
        """Return the order in which an epoch visits the samples."""
        return SampleOrder(self.samples, seed, epoch)

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

    def __init__(self, folder: Path, shards: list[Shard], array: ArrayType, copy_of: CopyOf | None) -> None:
        self._shards, self._copy_of = shards, copy_of
        # What is no longer among the last used is closed once no thread reads it any more.
        self._opened = lru_cache(_MOST_OPEN_FILES)(FileIO)
        self._files = [folder / shard.file for shard in shards]
        self._starts = np.cumsum([0, *(shard.samples for shard in shards)])
        self._dtype, self._shape = np.dtype(array.dtype).newbyteorder("<"), array.shape
        self._sample_bytes = array.sample_bytes
        self._maps: dict[int, Array] = {}

    def new(self, samples: int) -> Array:
        return np.empty((samples, *self._shape), dtype=self._dtype)

    def gather(self, sample_ids: npt.NDArray[np.int64], into: Array) -> None:
        if self._copy_of is not None:
            self._read_rows(self._copy_of, sample_ids, into)
            return
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

    def _read_rows(self, copy_of: CopyOf, sample_ids: npt.NDArray[np.int64], into: Array) -> None:
        """Read each row by a request of its own. Any thread may do so."""
        shards = np.searchsorted(self._starts, sample_ids, side="right") - 1
        starts = (sample_ids - self._starts[shards]) * self._sample_bytes
        for place, (shard, start) in enumerate(zip(shards.tolist(), starts.tolist(), strict=True)):
            file = self._file_of(shard, copy_of)
            left = into[place : place + 1].view(np.uint8).reshape(-1).data
            while left:
                count = os.preadv(file.fileno(), [left], start)
                if count == 0:
                    raise StepError(f"{file.name} is shorter than the dataset's manifest says; prepare it again")
                left, start = left[count:], start + count

    def _file_of(self, shard: int, copy_of: CopyOf) -> FileIO:
        """Return a shard's file where it is read fastest at that moment."""
        copy = copy_of(self._shards[shard])
        if copy is not None:
            with suppress(FileNotFoundError):  # another job of this node made room for its own
                return self._opened(copy)
        return self._opened(self._files[shard])

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
    """Map with torch: any number of files, but Linux refuses a map larger than the machine's memory.

    Where there is no torch, as in TensorFlow's images, with numpy.
    """
    try:
        import torch
    except ImportError:
        return _map_and_keep_open(file, size_bytes)
    array: Bytes = torch.from_file(str(file), shared=False, size=size_bytes, dtype=torch.uint8).numpy()
    array.flags.writeable = False
    return array
