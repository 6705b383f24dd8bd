"""All ranks over gloo, for what is in main memory, without a connection between every two of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

Value = TypeVar("Value")
Nodes = Sequence[Sequence[int]]
"""The ranks of each node, in order."""


class HostGroup:
    """The ranks of each node, and the first ranks of all nodes, through which goes what leaves a node.

    Every rank calls every method, in the same order, from one thread at a time.
    """

    def __init__(self, nodes: Nodes, rank: int, timeout: timedelta, of_node: dist.ProcessGroup | None = None) -> None:
        self.nodes = nodes
        self._first_of = {each: node[0] for node in nodes for each in node}
        self._of_node = of_node or _own_of(nodes, rank, timeout)
        # Those that are not the first of a node have a group of their own: all ranks are then in equally many groups.
        firsts = [[node[0] for node in nodes], *([each] for node in nodes for each in node[1:])]
        self._of_firsts = _own_of(firsts, rank, timeout) if len(nodes) > 1 else None

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the element-wise sum over all ranks, in place."""
        dist.reduce(values, group_dst=0, group=self._of_node)
        if self._of_firsts is not None:
            dist.all_reduce(values, group=self._of_firsts)
        dist.broadcast(values, group_src=0, group=self._of_node)
        return values

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, by rank, on every rank. They must be small and pickle."""
        found = [value] * self._of_node.size()
        dist.all_gather_object(found, value, group=self._of_node)
        if self._of_firsts is None:
            return found
        of_nodes = [found] * self._of_firsts.size()
        dist.all_gather_object(of_nodes, found, group=self._of_firsts)
        ranks, values = itertools.chain(*self.nodes), itertools.chain(*of_nodes)
        of_all = [dict(zip(ranks, values, strict=False))]  # all of them on first ranks, from which the others have it
        dist.broadcast_object_list(of_all, group=self._of_node, group_src=0)
        return [of_all[0][rank] for rank in range(dist.get_world_size())]

    def broadcast(self, value: Value) -> Value:
        """Return rank 0's value on every rank."""
        box = [value]
        if self._of_firsts is not None:
            dist.broadcast_object_list(box, group=self._of_firsts, group_src=0)
        dist.broadcast_object_list(box, group=self._of_node, group_src=0)
        return box[0]

    def route(self, source: int, target: int) -> list[tuple[int, int, dist.ProcessGroup | None]]:
        """Return the hops of a message, three for every two ranks: from one, to another, in a group.

        A hop from a rank to itself is none.
        """
        first, last = self._first_of[source], self._first_of[target]
        if first == last:
            first = last = target
        return [(source, first, self._of_node), (first, last, self._of_firsts), (last, target, self._of_node)]


def _own_of(groups: Nodes, rank: int, timeout: timedelta) -> dist.ProcessGroup:
    # Every rank asks for all, though only an own group takes time: torch names them by how often a rank has asked. With
    # use_local_synchronization it would go by how many groups a rank is in, of which a user's code may make more.
    made = {ranks[0]: dist.new_group(list(ranks), timeout, "gloo") for ranks in groups}
    group: dist.ProcessGroup = made[next(ranks[0] for ranks in groups if rank in ranks)]
    return group
