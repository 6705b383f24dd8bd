"""Collectives of the ranks for checkpoints, apart from the training's own, that raise on every rank what one raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from trainyard.settings.files import describe_os_error
from trainyard.steps.runtime.errors import StepError
from trainyard.steps.runtime.world import World
from trainyard.steps.training.checkpoints.checkpoint_to_resume import OneRank

Value = TypeVar("Value")


class Ranks(OneRank):
    """All ranks over a separate gloo group, which a thread may use while the training uses the others."""

    def __init__(self, world: World) -> None:
        self.rank, self.size, self.is_main = world.rank, world.size, world.is_main
        # The default group does not support two threads at once (seen in torch 2.13: they wait forever).
        self._group = dist.new_group(backend="gloo", timeout=world.timeout) if world.size > 1 else None

    def each(self, action: Callable[[], Value]) -> list[Value]:
        """Run the action on every rank. Return the results by rank; they must be small and pickle.

        A StepError of any rank is raised on all; an OSError becomes a StepError.
        """
        result = _result_or_error(action, of_rank="" if self.size == 1 else f" (rank {self.rank})")
        results: list[Any] = [result]
        if self._group is not None:
            results *= self.size
            dist.all_gather_object(results, result, group=self._group)
        return [_value_or_raise(value) for value in results]

    def main(self, action: Callable[[], Value]) -> Value:
        """Run the action on rank 0. Return its result on every rank. Raises as `each` does."""
        box: list[Any] = [_result_or_error(action, of_rank="") if self.is_main else None]
        if self._group is not None:
            dist.broadcast_object_list(box, src=0, group=self._group)
        value: Value = _value_or_raise(box[0])
        return value


def _result_or_error(action: Callable[[], Value], of_rank: str) -> Value | StepError:
    try:
        return action()
    except StepError as error:
        return type(error)(f"{error}{of_rank}")
    except OSError as failure:
        return StepError(describe_os_error(failure) + of_rank)


def _value_or_raise(value: Any) -> Any:
    if isinstance(value, StepError):
        raise value
    return value
