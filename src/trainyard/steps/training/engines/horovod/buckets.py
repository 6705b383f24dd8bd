"""Gradients in buckets of fixed content: Horovod sums a bucket as soon as the backward pass has filled it.

Horovod itself fuses whatever tensors are ready at the same moment, so with three or more ranks the order in which
numbers are added changes from step to step. A bucket is one tensor with always the same parameters, so a resumed
training has the bits of an uninterrupted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

_BUCKET_BYTES = 25 * 2**20
"""As DDP's: large enough for a network's full bandwidth, small enough to overlap with the backward pass."""


class Bucket:
    """The gradients of some parameters, one after another in one tensor."""

    def __init__(self, name: str, parameters: list[torch.nn.Parameter]) -> None:
        self.name, self.parameters = name, parameters
        first = parameters[0]
        self.values = torch.zeros(sum(p.numel() for p in parameters), dtype=first.dtype, device=first.device)
        pieces = self.values.split([parameter.numel() for parameter in parameters])
        self._pieces = {p: piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)}
        self._missing = set(parameters)

    def take(self, parameter: torch.nn.Parameter) -> bool:
        """Take a parameter's gradient, which becomes a view of the bucket. Return whether the bucket is full."""
        piece = self._pieces[parameter]
        if parameter.grad is None:
            piece.zero_()
        else:
            piece.copy_(parameter.grad)
        parameter.grad = piece
        self._missing.discard(parameter)
        return not self._missing

    def take_the_rest(self) -> bool:
        """Take what this step has no gradient for, as zeros. Return whether there was any."""
        missing = [parameter for parameter in self.parameters if parameter in self._missing]
        for parameter in missing:
            self.take(parameter)
        return bool(missing)

    def reset(self) -> None:
        """Expect all gradients again."""
        self._missing = set(self.parameters)


class GradientExchange:
    """Sums gradients over all ranks, bucket by bucket, while it is open."""

    def __init__(self, horovod: Any, parameters: list[torch.nn.Parameter]) -> None:
        self._horovod = horovod
        # The backward pass reaches the last layers first.
        self._buckets = [
            Bucket(f"gradients {number}", group) for number, group in enumerate(_grouped(reversed(parameters)))
        ]
        self._sums: list[Any] = []
        self.is_open = False
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))

    def finish(self) -> None:
        """Wait until every rank's gradients are summed."""
        for bucket in self._buckets:
            if bucket.take_the_rest():
                self._begin(bucket)
        for handle in self._sums:
            self._horovod.synchronize(handle)
        self._sums.clear()
        for bucket in self._buckets:
            bucket.reset()

    def _hook(self, bucket: Bucket) -> Any:
        def take(parameter: torch.nn.Parameter) -> None:
            if self.is_open and bucket.take(parameter):
                self._begin(bucket)

        return take

    def _begin(self, bucket: Bucket) -> None:
        self._sums.append(self._horovod.allreduce_async_(bucket.values, name=bucket.name, op=self._horovod.Sum))


def _grouped(parameters: Iterable[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Divide parameters, in their order, into groups of one type and of about the size of a bucket."""
    group: list[torch.nn.Parameter] = []
    size_bytes = 0
    for parameter in parameters:
        if group and (parameter.dtype != group[0].dtype or size_bytes >= _BUCKET_BYTES):
            yield group
            group, size_bytes = [], 0
        group.append(parameter)
        size_bytes += parameter.numel() * parameter.element_size()
    if group:
        yield group
