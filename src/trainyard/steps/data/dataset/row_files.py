"""Rows of shards, each read by a request of its own: what threads do at the same time, where memory maps would not.

A page of a mounted store that a map touches is fetched while Python's lock is held, and everything waits.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.steps.data.dataset.shards import Shard
from trainyard.steps.runtime.errors import StepError

_MOST_OPEN_FILES = 256
"""A process may often have only 1,024."""


class RowFiles:
    """The files of one array, opened where they are read fastest at that moment. Any thread may read."""

    def __init__(self, folder: Path, shards: Sequence[Shard], copy_of: Callable[[Shard], Path | None]) -> None:
        """`copy_of` returns a shard's copy on a faster disk, if there is one at that moment."""
        self._folder, self._shards, self._copy_of = folder, shards, copy_of
        self._open: OrderedDict[Path, FileIO] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, shard: int, start: int, into: npt.NDArray[np.uint8]) -> None:
        """Fill `into` with a shard's bytes from `start` on. StepError if there are fewer."""
        file = self._file_of(self._shards[shard])
        left = into.data
        while left:
            count = os.preadv(file.fileno(), [left], start)
            if count == 0:
                raise StepError(f"{file.name} is shorter than the dataset's manifest says; prepare the dataset again")
            left, start = left[count:], start + count

    def _file_of(self, shard: Shard) -> FileIO:
        copy = self._copy_of(shard)
        if copy is not None:
            with suppress(FileNotFoundError):  # another job of this node made room for its own
                return self._opened(copy)
        return self._opened(self._folder / shard.file)

    def _opened(self, place: Path) -> FileIO:
        with self._lock:
            if (file := self._open.get(place)) is not None:
                self._open.move_to_end(place)
                return file
        opened = FileIO(place)
        with self._lock:
            file = self._open.setdefault(place, opened)
            if len(self._open) > _MOST_OPEN_FILES:
                # It is closed once no thread reads it any more.
                self._open.popitem(last=False)
            return file
