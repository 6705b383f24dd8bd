"""A model that all ranks share: brought to every rank as an engine is built, a part at a time.

Where a model's weights are in files, each rank reads a part of them; where they are new, it draws a part; else rank 0
builds the model and sends it. No node holds the model more than once in main memory, except while every rank builds one
of the few models that cannot be built without memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainyard.settings.quantities import memory
from trainyard.steps.runtime.world import World
from trainyard.steps.training.fragments import tensors_of
from trainyard.steps.training.models_without_weights import (
    CannotLeaveOut,
    ModelWithoutWeights,
    WeightReader,
    exchange_values,
    model_without_weights,
    of_same_kind,
    own_tensors,
)


@dataclass(frozen=True)
class RowsOfRank:
    """One of so many shards of a tensor's rows, as FSDP2 cuts them; by default all of them."""

    index: int = 0
    count: int = 1
    replicas: dist.ProcessGroup | None = None
    """The ranks that hold this same shard, where there are several."""

    def elements(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the first element of this shard's rows in the flattened tensor, and the one after their last.

        There are as many rows as in the first shard, while there are.
        """
        if not shape:
            return 0, 1
        each, width = math.ceil(shape[0] / self.count), math.prod(shape[1:])
        return min(each * self.index, shape[0]) * width, min(each * (self.index + 1), shape[0]) * width


def shared_model(
    new_model: Callable[[], torch.nn.Module],
    world: World,
    still_at_work: Callable[[], None],
    shard: RowsOfRank | None = None,
) -> SharedModel:
    """Return a new model for all ranks: read or drawn by all of them if possible, else built by rank 0.

    A rank that holds a shard may get only these rows of each parameter; then the values of the others are undefined.
    Every rank calls it.
    """
    try:
        found, reason = model_without_weights(new_model), None
    except CannotLeaveOut as failure:
        reason = str(failure)
    if reasons := [each for each in world.gather(reason) if each is not None]:
        built: list[torch.nn.Module] = []
        world.let_some_work(lambda: built.append(new_model()), still_at_work, works=world.is_main)
        found = ModelWithoutWeights(built[0] if built else without_memory(new_model), {})
        size = memory(sum(tensor.nbytes for tensor in tensors_of(found.module).values()))
        world.log(f"rank 0 has built the whole model, {size} of main memory, and sends it to all ranks: {reasons[0]}")
    return SharedModel(found, world, still_at_work, shard)


class SharedModel:
    """A model that reaches every rank part by part, so that an engine can shard one before the next arrives.

    What is in files is read, and what is new is drawn: this rank's rows, or in turn whole tensors, which ranks then
    send each other, as those do that hold the same rows. In either case ranks do so at the same time, and each value
    once. Everything else comes from rank 0: a model that it has built, or what goes with one in files, such as new
    adapters. A tensor with several names stays one.
    """

    def __init__(
        self, found: ModelWithoutWeights, world: World, still_at_work: Callable[[], None], shard: RowsOfRank | None
    ) -> None:
        self.module, self.weights = found.module, found.weights
        self.bytes_read = 0
        """From the files, on this rank."""
        self._world, self._still_at_work = world, still_at_work
        self._whole = RowsOfRank(replicas=dist.group.WORLD)
        self._shard = shard or self._whole
        self._materialized: set[torch.nn.Module] = set()
        # A tensor is kept here only until the last place that refers to it has the new one.
        self._places = Counter(tensor for owner in self.module.modules() for _, _, tensor in own_tensors(owner))
        self._arrived: dict[torch.Tensor, torch.Tensor] = {}
        self._turns = {
            shard: readers_in_turn(self.weights, 1 if shard.replicas is None else shard.replicas.size())
            for shard in (self._shard, self._whole)
        }
        """Which of the ranks that hold the same of a tensor reads it."""
        self._read: dict[torch.Tensor, torch.Tensor] = {}
        """By this rank, for the part that is being materialized."""

    def materialize(self, part: torch.nn.Module) -> None:
        """Put a part on every rank's device, unless it already is: parameters, and all buffers, saved or not.

        It is read before any of it is sent, so that ranks do not wait for each other's files one by one.
        """
        self._still_at_work()
        reader = WeightReader()
        for tensor in dict.fromkeys(tensor for owner in part.modules() for _, _, tensor in own_tensors(owner)):
            shard = self._shard_of(tensor)
            is_own = shard.replicas is None or self._turns[shard].get(tensor) == shard.replicas.rank()
            if is_own and tensor in self.weights and tensor not in self._arrived:
                self._read[tensor] = reader.elements(self.weights[tensor], *shard.elements(tensor.shape))
        self.bytes_read += reader.bytes_read
        for owner in part.modules():
            if owner not in self._materialized:
                self._materialized.add(owner)
                for tensors, name, tensor in own_tensors(owner):
                    tensors[name] = self._arrive(tensor)
        self._read.clear()

    def elements(self, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return a range of a flattened tensor on this rank's device: of one that the model had before `materialize`.

        Every rank calls it for the same tensors.
        """
        if tensor not in self.weights:
            return from_rank_zero(tensor, self._world).view(-1)[start:stop]
        return WeightReader().elements(self.weights[tensor], start, stop).to(self._world.device)

    def _arrive(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in self._arrived:
            self._arrived[tensor] = of_same_kind(tensor, self._values(tensor))
        self._places[tensor] -= 1
        return self._arrived[tensor] if self._places[tensor] else self._arrived.pop(tensor)

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in self.weights:
            return from_rank_zero(tensor, self._world)
        values, shard = torch.empty_like(tensor, device=self._world.device, requires_grad=False), self._shard_of(tensor)
        held = values.view(-1)[slice(*shard.elements(tensor.shape))]
        if (own := self._read.get(tensor)) is not None:
            held.copy_(own)
        if shard.replicas is not None:
            dist.broadcast(held, group=shard.replicas, group_src=self._turns[shard][tensor])
        return values

    def _shard_of(self, tensor: torch.Tensor) -> RowsOfRank:
        """Return what this rank takes of a tensor: buffers are not sharded."""
        return self._shard if isinstance(tensor, torch.nn.Parameter) else self._whole


def readers_in_turn(tensors: Iterable[torch.Tensor], ranks: int) -> dict[torch.Tensor, int]:
    """Return the rank that reads each tensor: the one with the least to read so far."""
    readers, elements = {}, [0] * ranks
    for tensor in tensors:
        readers[tensor] = elements.index(min(elements))
        elements[readers[tensor]] += tensor.numel()
    return readers


def from_rank_zero(tensor: torch.Tensor, world: World) -> torch.Tensor:
    """Return rank 0's values on every rank's device; elsewhere the tensor need only have their shape."""
    if world.is_main:
        values = tensor.detach().to(world.device)
    else:
        values = torch.empty_like(tensor, device=world.device, requires_grad=False)
    dist.broadcast(values, src=0)
    return values


def without_memory(new_model: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Return the model on the meta device: names and shapes only."""
    # Models import it, which in torch 2.8 fails while a device is set.
    import torch._dynamo

    try:
        with torch.device("meta"):
            model = new_model()
    except Exception:
        # Some models compute while they are built, and a user's task may read weights: build as on rank 0, then empty.
        return _emptied(new_model())
    # Tensors other than parameters and buffers would not be sent.
    are_aside = any(isinstance(value, torch.Tensor) for owner in model.modules() for value in vars(owner).values())
    return _emptied(new_model()) if are_aside else model


def _emptied(model: torch.nn.Module) -> torch.nn.Module:
    for tensor in {tensor for owner in model.modules() for _, _, tensor in own_tensors(owner)}:
        exchange_values(tensor, tensor.detach().to("meta"))
    return model
