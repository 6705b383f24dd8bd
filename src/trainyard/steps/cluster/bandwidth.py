"""The bandwidth of collectives over message sizes, and of pairs of nodes or ranks.

Bus bandwidth is the figure that does not depend on the number of ranks: the speed of the slowest link if the algorithm
is optimal. Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainyard.steps.runtime.world import World

_SIZE_RATIO = 4
_LEAST_BYTES_PER_ROUND = 2**22
_MOST_CALLS_PER_ROUND = 5
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


def message_sizes(smallest_bytes: int, largest_bytes: int) -> list[int]:
    """Return sizes from the smallest to the largest, each four times the one before; the largest is always there."""
    sizes = []
    size = smallest_bytes
    while size < largest_bytes:
        sizes.append(size)
        size *= _SIZE_RATIO
    return [*sizes, largest_bytes]


def measure_collective(
    collective: Collective,
    world: World,
    size_bytes: int,
    repetitions: int,
    group: dist.ProcessGroup | None = None,
    group_size: int | None = None,
) -> Measurement:
    """Return the median of several rounds; a round lasts as long as it does on its slowest rank.

    Every rank of the world must call this, with the group it belongs to.
    """
    ranks = group_size or world.size
    elements = max(1, size_bytes // (_FLOAT_BYTES * ranks)) * ranks
    call = collective.make(torch.zeros(elements, device=world.device), ranks, group)
    calls = max(1, min(_MOST_CALLS_PER_ROUND, _LEAST_BYTES_PER_ROUND // size_bytes))
    call()  # connections are made in the first call
    rounds = torch.tensor([_seconds_of(call, calls, world) for _ in range(repetitions)])
    dist.all_reduce(rounds, op=dist.ReduceOp.MAX, group=group)
    seconds = statistics.median(rounds.tolist())
    message_bytes = elements * _FLOAT_BYTES
    rate = message_bytes / seconds
    bus_rate = rate * collective.bus_transfers * (ranks - 1) / ranks
    return Measurement(collective.name, message_bytes, seconds, rate, bus_rate)


def _seconds_of(call: Callable[[], object], calls: int, world: World) -> float:
    world.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if world.device.type == "cuda":
        torch.cuda.synchronize(world.device)
    return (time.perf_counter() - start) / calls


def rounds_of_pairs(count: int, most_rounds: int) -> Iterator[dict[int, int]]:
    """Yield rounds in which each of `count` units has another partner; with an odd count one sits out.

    This is the circle method of a round-robin tournament. If there are more rounds than asked for, they are spread
    evenly over the tournament.
    """
    units: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    total = len(units) - 1
    chosen = {total * number // most_rounds for number in range(most_rounds)} if most_rounds < total else None
    for number in range(total):
        if chosen is None or number in chosen:
            halves = zip(units[: len(units) // 2], reversed(units[len(units) // 2 :]), strict=True)
            pairs = [(a, b) for a, b in halves if a is not None and b is not None]
            yield {one: other for a, b in pairs for one, other in ((a, b), (b, a))}
        units = [units[0], units[-1], *units[1:-1]]


def measure_pairs(
    world: World, unit_ranks: int, size_bytes: int, most_rounds: int, repetitions: int
) -> dict[tuple[int, int], float]:
    """Return the bandwidth of pairs of units in bytes per second and direction, over all their ranks.

    A unit is `unit_ranks` ranks that follow each other: a node, or a single rank. In each round every unit exchanges
    data with one other in both directions at once, rank by rank.
    """
    own, place = divmod(world.rank, unit_ranks)
    message = torch.zeros(max(1, size_bytes // _FLOAT_BYTES), device=world.device)
    received = torch.empty_like(message)
    seconds_of_partner: dict[int, float] = {}
    for partners in rounds_of_pairs(world.size // unit_ranks, most_rounds):
        partner = partners.get(own)

        def exchange(partner: int | None = partner) -> None:
            if partner is None:
                return
            peer = partner * unit_ranks + place
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, message, peer), dist.P2POp(dist.irecv, received, peer)]
            ):
                work.wait()

        exchange()  # connections are made in the first call
        timed = [_seconds_of(exchange, 1, world) for _ in range(repetitions)]
        if partner is not None:
            seconds_of_partner[partner] = statistics.median(timed)
    unit_bytes = message.numel() * _FLOAT_BYTES * unit_ranks
    slowest: dict[tuple[int, int], float] = {}
    for rank, found in enumerate(world.gather(seconds_of_partner)):
        for partner, seconds in found.items():
            pair = min(rank // unit_ranks, partner), max(rank // unit_ranks, partner)
            slowest[pair] = max(seconds, slowest.get(pair, 0.0))
    return {pair: unit_bytes / seconds for pair, seconds in sorted(slowest.items())}
