"""The whole model in rank 0's main memory, put together from what all ranks hold of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from trainyard.steps.runtime.world import World
from trainyard.steps.training.fragments import MODEL_KEY, Fragment, named_once


class _Range(NamedTuple):
    """What rank 0 needs to know of a fragment."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    stop: int
    is_replicated: bool


def whole_model(
    new_model: Callable[[], torch.nn.Module], fragments: Sequence[Fragment], world: World
) -> torch.nn.Module:
    """On rank 0 a new model with the values of all ranks' fragments; an empty one elsewhere. Every rank calls it."""
    own = {fragment.key: fragment for fragment in fragments if fragment.key.startswith(MODEL_KEY)}
    ranges = {key: _range(fragment) for key, fragment in own.items()}
    if not world.is_main:
        dist.gather_object(ranges, dst=0)
        _send(own)
        return torch.nn.Module()
    by_rank: list[dict[str, _Range]] = [{}] * world.size
    dist.gather_object(ranges, by_rank, dst=0)
    model = new_model()
    parameters, buffers = named_once(model)
    tensors = parameters | buffers
    with torch.no_grad():
        for key in sorted(set().union(*by_rank)):
            held = {rank: ranges[key] for rank, ranges in enumerate(by_rank) if key in ranges}
            tensors[key.removeprefix(MODEL_KEY)].copy_(_receive(own.get(key), held))
    return model


def _send(own: Mapping[str, Fragment]) -> None:
    """Give rank 0 what it does not have, in the order in which it asks.

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
