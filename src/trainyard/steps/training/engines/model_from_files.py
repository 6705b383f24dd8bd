"""A model whose weights are in files, for all ranks: each reads a part of them, and nobody holds the whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainyard.steps.runtime.world import World
from trainyard.steps.training.engines.rank_zero_model import ModelFromRankZero, SharedModel, own_tensors
from trainyard.steps.training.weights_in_files import FileReader, ModelInFiles, model_in_files


@dataclass(frozen=True)
class RowsOfRank:
    """One of so many shards of a parameter's rows, as FSDP2 cuts them."""

    index: int
    count: int

    def rows(self, rows: int) -> tuple[int, int]:
        """Return this shard's first row and the one after its last: as many as the first shard's, while there are."""
        each = math.ceil(rows / self.count)
        return min(each * self.index, rows), min(each * (self.index + 1), rows)


def shared_model(
    new_model: Callable[[], torch.nn.Module],
    world: World,
    still_at_work: Callable[[], None],
    shard: RowsOfRank | None = None,
) -> SharedModel:
    """Return a new model for all ranks: read by all of them where its weights are in files, else built by rank 0.

    A rank that holds a shard may get only these rows of each parameter; then the values of the others are undefined.
    Every rank calls it.
    """
    found = model_in_files(new_model)
    if world.sum(torch.tensor(float(found is None))).item() > 0 or found is None:
        return ModelFromRankZero(new_model, world, still_at_work)
    return ModelFromFiles(found, world, still_at_work, shard)


class ModelFromFiles(SharedModel):
    """Read part by part: this rank's rows, or in turn whole tensors, which ranks then send each other.

    In either case ranks read at the same time, and of whole tensors each byte once. What is not in files, such as new
    adapters, each rank has built; rank 0's values count.
    """

    def __init__(
        self, found: ModelInFiles, world: World, still_at_work: Callable[[], None], shard: RowsOfRank | None
    ) -> None:
        super().__init__(found.module, world)
        self.bytes_read = 0
        """From the files, on this rank."""
        self._in_files, self._still_at_work, self._shard = found.weights, still_at_work, shard
        self._turns = _readers(found.weights, world.size)
        """Which rank reads a whole tensor."""
        self._read: dict[torch.Tensor, torch.Tensor] = {}
        """By this rank, for the part that is being materialized."""

    def materialize(self, part: torch.nn.Module) -> None:
        """Read a part before any of it is sent, so that ranks do not wait for each other's files one by one."""
        self._still_at_work()
        with FileReader() as reader:
            for tensor in dict.fromkeys(tensor for owner in part.modules() for _, _, tensor in own_tensors(owner)):
                if tensor in self._in_files and tensor not in self._arrived:
                    self._read_own(tensor, reader)
        self.bytes_read += reader.bytes_read
        super().materialize(part)
        self._read.clear()

    def elements(self, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return the range as it is in the file, if it is in one. No other rank is needed for that."""
        if tensor not in self._in_files:
            return super().elements(tensor, start, stop)
        with FileReader() as reader:
            return reader.elements(self._in_files[tensor], start, stop).to(self._world.device)

    def _read_own(self, tensor: torch.Tensor, reader: FileReader) -> None:
        weight = self._in_files[tensor]
        if self._has_rows(tensor):
            assert self._shard is not None
            self._read[tensor] = reader.rows(weight, *self._shard.rows(tensor.shape[0]))
        elif self._turns[tensor] == self._world.rank:
            self._read[tensor] = reader.whole(weight)

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in self._in_files:
            return super()._values(tensor)
        if self._turns[tensor] == self._world.rank and not self._has_rows(tensor):
            values = self._read[tensor].to(self._world.device)
        else:
            values = torch.empty_like(tensor, device=self._world.device, requires_grad=False)
        if not self._has_rows(tensor):
            dist.broadcast(values, src=self._turns[tensor])
        elif self._shard is not None:
            first, end = self._shard.rows(tensor.shape[0])
            values[first:end].copy_(self._read[tensor])
        return values

    def _has_rows(self, tensor: torch.Tensor) -> bool:
        """Return whether this rank takes only rows of a tensor: of parameters, since buffers are not sharded."""
        return self._shard is not None and isinstance(tensor, torch.nn.Parameter)


def _readers(tensors: Iterable[torch.Tensor], ranks: int) -> dict[torch.Tensor, int]:
    """Return the rank that reads each tensor: the one with the least to read so far."""
    readers, elements = {}, [0] * ranks
    for tensor in tensors:
        readers[tensor] = elements.index(min(elements))
        elements[readers[tensor]] += tensor.numel()
    return readers
