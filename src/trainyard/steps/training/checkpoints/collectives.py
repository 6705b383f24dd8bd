"""Collectives of the ranks for checkpoints, apart from the training's own, that raise on every rank what one raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from trainyard.settings.files import describe_os_error
from trainyard.steps.runtime.errors import StepError, StorageError, is_of_storage
from trainyard.steps.runtime.host_group import HostGroup
from trainyard.steps.runtime.world import World
from trainyard.steps.training.checkpoints.checkpoint_to_resume import OneRank

Value = TypeVar("Value")


class Ranks(OneRank):
    """All ranks over a separate host group, which a thread may use while the training uses the others."""

    def __init__(self, world: World) -> None:
        self.rank, self.size, self.is_main = world.rank, world.size, world.is_main
        # A group does not support two threads at once (seen in torch 2.13: they wait forever).
        self._group = HostGroup(world.host.nodes, world.rank, world.timeout) if world.size > 1 else None

    def each(self, action: Callable[[], Value]) -> list[Value]:
        """Run the action on every rank. Return the results by rank; they must be small and pickle.

        A StepError of any rank is raised on all; an OSError becomes a StepError.
        """
        result = _result_or_error(action, of_rank="" if self.size == 1 else f" (rank {self.rank})")
        results = [result] if self._group is None else self._group.gather(result)
        return [_value_or_raise(value) for value in results]

    def main(self, action: Callable[[], Value]) -> Value:
        """Run the action on rank 0. Return its result on every rank. Raises as `each` does."""
        result = _result_or_error(action, of_rank="") if self.is_main else None
        value: Value = _value_or_raise(result if self._group is None else self._group.broadcast(result))
        return value


def _result_or_error(action: Callable[[], Value], of_rank: str) -> Value | StepError:
    try:
        return action()
    except StepError as error:
        return type(error)(f"{error}{of_rank}")
    except OSError as failure:
        kind = StorageError if is_of_storage(failure) else StepError
        return kind(describe_os_error(failure) + of_rank)


def _value_or_raise(value: Any) -> Any:
    if isinstance(value, StepError):
        raise value
    return value
