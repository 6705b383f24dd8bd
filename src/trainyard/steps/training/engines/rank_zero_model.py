"""The whole model in rank 0's memory only: sent to all ranks as an engine is built, and gathered again to be saved.

`model_from_files` does without that where a model's weights are in files.

No node holds the model more than once in main memory, except while every rank builds one of the few models that cannot
be built without memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from trainyard.steps.runtime.world import World
from trainyard.steps.training.fragments import MODEL_KEY, Fragment, named_once


class SharedModel:
    """A model without memory on some ranks or all, until `materialize` puts a part of it on every rank's device.

    Part by part, so that an engine can shard one before the next arrives. A tensor with several names stays one tensor.
    """

    def __init__(self, module: torch.nn.Module, world: World) -> None:
        self.module, self._world = module, world
        self._materialized: set[torch.nn.Module] = set()
        # A tensor is kept here only until the last place that refers to it has the new one.
        self._places = Counter(tensor for owner in self.module.modules() for _, _, tensor in own_tensors(owner))
        self._arrived: dict[torch.Tensor, torch.Tensor] = {}

    def materialize(self, part: torch.nn.Module) -> None:
        """Put a part on every rank's device, unless it already is: parameters, and all buffers, saved or not."""
        for owner in part.modules():
            if owner not in self._materialized:
                self._materialized.add(owner)
                for tensors, name, tensor in list(own_tensors(owner)):
                    tensors[name] = self._arrive(tensor)

    def elements(self, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return a range of a flattened tensor on this rank's device: of one that the model had before `materialize`.

        Every rank calls it for the same tensors.
        """
        return from_rank_zero(tensor, self._world).view(-1)[start:stop]

    def _arrive(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor not in self._arrived:
            values = self._values(tensor)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            self._arrived[tensor] = torch.nn.Parameter(values, tensor.requires_grad) if is_parameter else values
        self._places[tensor] -= 1
        return self._arrived[tensor] if self._places[tensor] else self._arrived.pop(tensor)

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        return from_rank_zero(tensor, self._world)


class ModelFromRankZero(SharedModel):
    """Built on the CPU by rank 0, and without any memory by the others; `materialize` sends them the weights."""

    def __init__(
        self, new_model: Callable[[], torch.nn.Module], world: World, still_at_work: Callable[[], None]
    ) -> None:
        super().__init__(built_by_rank_zero(new_model, world, still_at_work) or without_memory(new_model), world)


def from_rank_zero(tensor: torch.Tensor, world: World) -> torch.Tensor:
    """Return rank 0's values on every rank's device; elsewhere the tensor need only have their shape."""
    if world.is_main:
        values = tensor.detach().to(world.device)
    else:
        values = torch.empty_like(tensor, device=world.device, requires_grad=False)
    dist.broadcast(values, src=0)
    return values


def built_by_rank_zero(
    new_model: Callable[[], torch.nn.Module], world: World, still_at_work: Callable[[], None]
) -> torch.nn.Module | None:
    """Return a new model on rank 0, however long that takes; None elsewhere, once it is built.

    Every rank calls `still_at_work` about once a second meanwhile.
    """
    built: list[torch.nn.Module] = []
    world.let_main_work(lambda: built.append(new_model()), still_at_work)
    return built[0] if built else None


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
    return _emptied(new_model()) if _keeps_tensors_aside(model) else model


def _keeps_tensors_aside(model: torch.nn.Module) -> bool:
    """Return whether there are tensors other than parameters and buffers, whose values would not be sent."""
    return any(isinstance(value, torch.Tensor) for owner in model.modules() for value in vars(owner).values())


def _emptied(model: torch.nn.Module) -> torch.nn.Module:
    emptied: dict[torch.Tensor, torch.Tensor] = {}
    for owner in model.modules():
        for tensors, name, tensor in list(own_tensors(owner)):
            if tensor not in emptied:
                values = tensor.detach().to("meta")
                is_parameter = isinstance(tensor, torch.nn.Parameter)
                emptied[tensor] = torch.nn.Parameter(values, tensor.requires_grad) if is_parameter else values
            tensors[name] = emptied[tensor]
    return model


def own_tensors(owner: torch.nn.Module) -> Iterator[tuple[dict[str, torch.Tensor], str, torch.Tensor]]:
    """Yield a module's own parameters and buffers: the dictionary that holds each, its name there, and the tensor."""
    for tensors in (owner._parameters, owner._buffers):
        for name, tensor in tensors.items():
            if tensor is not None:
                yield tensors, name, tensor  # type: ignore[misc]


class _Range(NamedTuple):
    """What rank 0 needs to know about a fragment."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int
    is_replicated: bool


def whole_model(
    new_model: Callable[[], torch.nn.Module],
    fragments: Sequence[Fragment],
    world: World,
    still_at_work: Callable[[], None],
) -> torch.nn.Module:
    """Return, on rank 0, a new model with the values of all ranks' fragments; an empty one elsewhere.

    They are gathered one by one. Every rank calls it.
    """
    own = [fragment for fragment in fragments if fragment.key.startswith(MODEL_KEY)]
    model = built_by_rank_zero(new_model, world, still_at_work)
    parameters, buffers = named_once(model) if model is not None else ({}, {})
    tensors = parameters | buffers
    with torch.no_grad():
        for key, values in gathered(own, world):
            tensors[key.removeprefix(MODEL_KEY)].copy_(values)
    return model if model is not None else torch.nn.Module()


def gathered(fragments: Iterable[Fragment], world: World) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield, on rank 0, each whole tensor with its key, in main memory; nothing elsewhere. Every rank iterates."""
    own = {fragment.key: fragment for fragment in fragments}
    by_rank: list[dict[str, _Range]] | None = [{}] * world.size if world.is_main else None
    dist.gather_object({key: _range(fragment) for key, fragment in own.items()}, by_rank, dst=0)
    if by_rank is None:
        _send(own)
        return
    for key in sorted(set().union(*by_rank)):
        held = {rank: ranges[key] for rank, ranges in enumerate(by_rank) if key in ranges}
        yield key, _receive(own.get(key), held)


def _send(own: Mapping[str, Fragment]) -> None:
    """Send rank 0 what it does not have, in the order in which it asks.

    From main memory, over gloo: NCCL would make a communicator, with buffers on rank 0's GPU, for every other rank.
    """
    for key in sorted(own):
        if not own[key].is_replicated and own[key].values.numel():
            dist.send(own[key].values.cpu().contiguous(), dst=0)


def _range(fragment: Fragment) -> _Range:
    return _Range(fragment.shape, fragment.values.dtype, fragment.start, fragment.stop, fragment.is_replicated)


def _receive(own: Fragment | None, held: Mapping[int, _Range]) -> torch.Tensor:
    """Put one tensor together; the pieces come one by one, because their sizes differ."""
    first = next(iter(held.values()))
    whole = torch.zeros(math.prod(first.shape), dtype=first.dtype)
    if own is not None:
        whole[own.start : own.stop] = own.values.cpu()
    for rank, piece in held.items():
        if rank != 0 and not piece.is_replicated and piece.start < piece.stop:
            dist.recv(whole[piece.start : piece.stop], src=rank)
    return whole.view(first.shape)
