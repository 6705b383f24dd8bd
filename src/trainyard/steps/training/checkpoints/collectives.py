"""What the ranks of a checkpoint do together, apart from the training's own exchanges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from trainyard.foundation.os_errors import describe_os_error
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World

Thing = TypeVar("Thing")

_KEPT_GROUPS: list[object] = []
"""Gloo groups are never torn down: see `world._LEFT_GROUPS`."""


@dataclass(frozen=True)
class _Failure:
    """What one rank could not do, for all ranks to raise."""

    mistake: StepError


class Ranks:
    """All ranks, over a gloo group of its own: a thread may use it while the training uses the others."""

    def __init__(self, world: World) -> None:
        self.rank, self.size, self.is_main = world.rank, world.size, world.is_main
        # The default group is not for two threads at once (seen in torch 2.13: they wait for ever).
        self._group = dist.new_group(backend="gloo", timeout=world.timeout) if world.size > 1 else None
        _KEPT_GROUPS.append(self._group)

    def each(self, action: Callable[[], Thing]) -> list[Thing]:
        """Let every rank act; gives what each made, by rank. Raises on every rank the StepError of one that could not.

        What the file system refuses becomes a StepError, too. For small things that pickle.
        """
        made = _made_or_failure(action, of_rank="" if self.size == 1 else f" (rank {self.rank})")
        things: list[Any] = [made]
        if self._group is not None:
            things *= self.size
            dist.all_gather_object(things, made, group=self._group)
        return [_thing_or_raise(thing) for thing in things]

    def main(self, action: Callable[[], Thing]) -> Thing:
        """Let rank 0 act; gives what it made, on every rank. Raises as `each` does."""
        box: list[Any] = [_made_or_failure(action) if self.is_main else None]
        if self._group is not None:
            dist.broadcast_object_list(box, src=0, group=self._group)
        thing: Thing = _thing_or_raise(box[0])
        return thing


def _made_or_failure(action: Callable[[], Thing], of_rank: str = "") -> Thing | _Failure:
    try:
        return action()
    except StepError as mistake:
        return _Failure(type(mistake)(f"{mistake}{of_rank}"))
    except OSError as failure:
        return _Failure(StepError(describe_os_error(failure) + of_rank))


def _thing_or_raise(thing: Any) -> Any:
    if isinstance(thing, _Failure):
        raise thing.mistake
    return thing
