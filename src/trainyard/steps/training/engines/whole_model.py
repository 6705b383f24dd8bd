"""The whole model in rank 0's main memory, put together from what all ranks hold of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from trainyard.steps.training.fragments import MODEL_KEY, Fragment, named_once
from trainyard.steps.training.world import World


class _Range(NamedTuple):
    """What other ranks need to know of a fragment."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int
    is_replicated: bool


def whole_model(
    new_model: Callable[[], torch.nn.Module], fragments: Sequence[Fragment], world: World
) -> torch.nn.Module:
    """On rank 0 a new model with the values of all ranks' fragments; an empty one elsewhere. Every rank calls it."""
    if not world.is_main:
        for _ in _gather(fragments, world):
            raise AssertionError("only rank 0 gathers")
        return torch.nn.Module()
    model = new_model()
    parameters, buffers = named_once(model)
    tensors = parameters | buffers
    with torch.no_grad():
        for name, values in _gather(fragments, world):
            tensors[name].copy_(values)
    return model


def _gather(fragments: Sequence[Fragment], world: World) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's tensors by name, whole, one after the other, on rank 0; nothing on others, which give theirs."""
    own = {fragment.key: fragment for fragment in fragments if fragment.key.startswith(MODEL_KEY)}
    by_rank = world.gather({key: _range(fragment) for key, fragment in own.items()})
    for key in sorted(set().union(*by_rank)):
        held = {rank: ranges[key] for rank, ranges in enumerate(by_rank) if key in ranges}
        if world.is_main:
            yield key.removeprefix(MODEL_KEY), _receive(own.get(key), held, world)
        elif world.rank in held and not held[world.rank].is_replicated and own[key].values.numel():
            dist.send(own[key].values.to(world.device).contiguous(), dst=0)


def _range(fragment: Fragment) -> _Range:
    return _Range(fragment.shape, fragment.values.dtype, fragment.start, fragment.stop, fragment.is_replicated)


def _receive(own: Fragment | None, held: Mapping[int, _Range], world: World) -> torch.Tensor:
    """Put one tensor together; the pieces come one by one, because their sizes differ."""
    first = next(iter(held.values()))
    whole = torch.zeros(math.prod(first.shape), dtype=first.dtype)
    if own is not None:
        whole[own.start : own.stop] = own.values.cpu()
    for rank, piece in held.items():
        if rank != 0 and not piece.is_replicated and piece.start < piece.stop:
            received = torch.empty(piece.stop - piece.start, dtype=first.dtype, device=world.device)
            dist.recv(received, src=rank)
            whole[piece.start : piece.stop] = received.cpu()
    return whole.view(first.shape)
