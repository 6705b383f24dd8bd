"""Reading a dataset: any samples of a split, gathered from memory-mapped shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainyard.steps.dataset.manifest import Manifest
from trainyard.steps.errors import StepError


class SplitReader:
    """The samples of one split, by their number. Maps each shard into memory when it is first asked for."""

    def __init__(self, folder: Path, manifest: Manifest, split: str) -> None:
        if split not in manifest.splits:
            available = ", ".join(manifest.splits)
            raise StepError(f"the dataset in {folder} has no split {split!r}; it has {available}")
        self.samples = manifest.splits[split].samples
        shards = manifest.splits[split].shards
        self._columns = {
            name: _Column(
                [folder / shard.file for shard in shards if shard.array == name],
                [shard.samples for shard in shards if shard.array == name],
                np.dtype(array.dtype).newbyteorder("<"),
                array.shape,
            )
            for name, array in manifest.arrays.items()
        }

    def gather(self, sample_ids: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        """Copies of the given samples, in the given order, for each array of the dataset."""
        return {name: column.gather(sample_ids) for name, column in self._columns.items()}


class _Column:
    """One array of a split over all its shards."""

    def __init__(
        self, files: list[Path], shard_samples: list[int], dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        self._files = files
        self._starts = np.concatenate([[0], np.cumsum(shard_samples)])
        self._dtype, self._shape = dtype, shape
        self._maps: dict[int, npt.NDArray[Any]] = {}

    def gather(self, sample_ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        if len(self._files) == 1:
            return self._map(0)[sample_ids]
        gathered = np.empty((len(sample_ids), *self._shape), dtype=self._dtype)
        shard_of_sample = np.searchsorted(self._starts, sample_ids, side="right") - 1
        for shard in np.unique(shard_of_sample):
            here = shard_of_sample == shard
            gathered[here] = self._map(int(shard))[sample_ids[here] - self._starts[shard]]
        return gathered

    def _map(self, shard: int) -> npt.NDArray[Any]:
        if shard not in self._maps:
            samples = int(self._starts[shard + 1] - self._starts[shard])
            mapped = np.memmap(self._files[shard], dtype=self._dtype, mode="r", shape=(samples, *self._shape))
            self._maps[shard] = np.asarray(mapped)
        return self._maps[shard]
