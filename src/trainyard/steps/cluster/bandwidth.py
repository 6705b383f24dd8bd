"""The bandwidth of collectives over message sizes.

Bus bandwidth is the figure that does not depend on the number of ranks: the speed of the slowest link if the algorithm
is optimal. Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainyard.steps.runtime.world import World

_LEAST_BYTES_PER_ROUND = 2**22
_MOST_CALLS_PER_ROUND = 5
_ENOUGH_SECONDS = 5.0
"""After which a measurement is not repeated: over a network a hundred times too slow, all would take hours."""
_FLOAT_BYTES = 4
# Renamed in torch 2.13, which warns of the old names.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Collective:
    """One collective operation, as nccl-tests counts it: the message is the larger of its input and output."""

    name: str
    bus_transfers: int
    """How often the message crosses the bus, in units of (n - 1) / n for n ranks."""
    make: Callable[[torch.Tensor, int, dist.ProcessGroup | None], Callable[[], object]]
    """From the message, the number of ranks and their group to one call of the operation."""


def _all_reduce(message: torch.Tensor, _: int, group: dist.ProcessGroup | None) -> Callable[[], object]:
    return lambda: dist.all_reduce(message, group=group)


def _all_gather(message: torch.Tensor, ranks: int, group: dist.ProcessGroup | None) -> Callable[[], object]:
    part = torch.zeros(len(message) // ranks, device=message.device)
    return lambda: _all_gather_single(message, part, group=group)


def _reduce_scatter(message: torch.Tensor, ranks: int, group: dist.ProcessGroup | None) -> Callable[[], object]:
    part = torch.zeros(len(message) // ranks, device=message.device)
    return lambda: _reduce_scatter_single(part, message, group=group)


ALL_REDUCE = Collective("all_reduce", 2, _all_reduce)
COLLECTIVES = (ALL_REDUCE, Collective("all_gather", 1, _all_gather), Collective("reduce_scatter", 1, _reduce_scatter))


@dataclass(frozen=True)
class Measurement:
    """One collective with one message size, in bytes and seconds; rates in bytes per second."""

    operation: str
    bytes: int
    seconds: float
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float


@dataclass(frozen=True)
class Team:
    """The ranks that a collective runs over, and how many they are."""

    group: dist.ProcessGroup | None
    size: int


def message_sizes(smallest_bytes: int, largest_bytes: int, ratio: int) -> list[int]:
    """Return sizes from the smallest to the largest, each `ratio` times the one before; the largest is always there."""
    sizes = []
    size = smallest_bytes
    while size < largest_bytes:
        sizes.append(size)
        size *= ratio
    return [*sizes, largest_bytes]


def measure_collective(
    collective: Collective, world: World, size_bytes: int, repetitions: int, team: Team | None = None
) -> Measurement:
    """Return the median of several rounds; a round lasts as long as it does on its slowest rank.

    The ranks of a team begin each round when the whole world does: a rank without a team must `sit_out` meanwhile.
    """
    team = team or Team(None, world.size)
    elements = max(1, size_bytes // (_FLOAT_BYTES * team.size)) * team.size
    call = collective.make(torch.zeros(elements, device=world.device), team.size, team.group)
    calls = max(1, min(_MOST_CALLS_PER_ROUND, _LEAST_BYTES_PER_ROUND // size_bytes))
    call()  # connections are made in the first call
    rounds = torch.tensor(_seconds_of_rounds(call, calls, world, repetitions), device=world.device)
    dist.all_reduce(rounds, op=dist.ReduceOp.MAX, group=team.group)
    return measurement(collective, team.size, elements * _FLOAT_BYTES, statistics.median(rounds.tolist()))


def measurement(collective: Collective, ranks: int, message_bytes: int, seconds: float) -> Measurement:
    """Return the rates of a message that takes so long among so many ranks."""
    rate = message_bytes / seconds
    bus_rate = rate * collective.bus_transfers * (ranks - 1) / ranks
    return Measurement(collective.name, message_bytes, seconds, rate, bus_rate)


def sit_out(world: World, repetitions: int) -> None:
    """Begin the rounds of one measurement with the others, and do nothing in them."""
    _seconds_of_rounds(lambda: None, 1, world, repetitions)


def _seconds_of_rounds(call: Callable[[], object], calls: int, world: World, repetitions: int) -> list[float]:
    rounds: list[float] = []
    for _ in range(repetitions):
        # What all agree on is also the barrier before each round.
        is_enough = torch.tensor(float(sum(rounds) * calls > _ENOUGH_SECONDS), device=world.device)
        if world.sum(is_enough).item() > 0:
            break
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
        rounds.append((time.perf_counter() - start) / calls)
    return rounds
