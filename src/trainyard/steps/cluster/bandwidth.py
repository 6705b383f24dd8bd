"""The bandwidth of collectives over message sizes: of the whole world, of the ranks of a node, and of pairs.

Bus bandwidth is the figure that does not depend on the number of ranks: the speed of the slowest link if the algorithm
is optimal. Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

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
    call: Callable[[torch.Tensor, torch.Tensor, dist.ProcessGroup | None], object]
    """Takes the message, one rank's part of it, and the ranks' group."""


ALL_REDUCE = Collective("all_reduce", 2, lambda message, part, group: dist.all_reduce(message, group=group))
COLLECTIVES = (
    ALL_REDUCE,
    Collective("all_gather", 1, lambda message, part, group: _all_gather_single(message, part, group=group)),
    Collective("reduce_scatter", 1, lambda message, part, group: _reduce_scatter_single(part, message, group=group)),
)


@dataclass(frozen=True)
class Measurement:
    """One collective with one message size, in bytes and seconds; rates in bytes per second."""

    operation: str
    bytes: int
    seconds: float
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float


def message_sizes(smallest_bytes: int, largest_bytes: int, ratio: int) -> list[int]:
    """Return sizes from the smallest to the largest, each `ratio` times the one before; the largest is always there."""
    sizes = []
    size = smallest_bytes
    while size < largest_bytes:
        sizes.append(size)
        size *= ratio
    return [*sizes, largest_bytes]


def measure_collective(
    collective: Collective, world: World, size_bytes: int, repetitions: int, group: dist.ProcessGroup | None = None
) -> Measurement:
    """Return the median of several rounds; a round lasts as long as it does on its slowest rank.

    The ranks of a group begin each round when the whole world does: others take part in the rounds, with nothing to do.
    """
    ranks = dist.get_world_size(group)
    elements = max(1, size_bytes // (_FLOAT_BYTES * ranks)) * ranks
    message, part = (torch.zeros(size, device=world.device) for size in (elements, elements // ranks))
    call = partial(collective.call, message, part, group)
    calls = max(1, min(_MOST_CALLS_PER_ROUND, _LEAST_BYTES_PER_ROUND // size_bytes))
    call()  # connections are made in the first call
    rounds = torch.tensor(_seconds_of_rounds(call, calls, world, repetitions), device=world.device)
    dist.all_reduce(rounds, op=dist.ReduceOp.MAX, group=group)
    return measurement(collective, ranks, elements * _FLOAT_BYTES, statistics.median(rounds.tolist()))


def measurement(collective: Collective, ranks: int, message_bytes: int, seconds: float) -> Measurement:
    """Return the rates of a message that takes so long among so many ranks."""
    rate = message_bytes / seconds
    bus_rate = rate * collective.bus_transfers * (ranks - 1) / ranks
    return Measurement(collective.name, message_bytes, seconds, rate, bus_rate)


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


@dataclass(frozen=True)
class PairMeasurement:
    """One collective between two nodes or ranks, in bytes and seconds.

    Between two nodes it runs rank by rank at once: bytes and rate are the sum, the seconds those of the slowest.
    """

    pair: tuple[int, int]
    operation: str
    bytes: int
    seconds: float
    bus_bytes_per_second: float


Partners = Mapping[int, int]
"""The partner of each rank in a round of pairs, which measure at once; one that sits out is not among them."""


def partners_within_nodes(nodes: int, node_ranks: int) -> list[Partners]:
    """Return the rounds in which every two ranks of a node meet, in all nodes at once."""
    rounds: list[Partners] = []
    for shift in range(1, 1 << (node_ranks - 1).bit_length()):
        partners: dict[int, int] = {}
        for rank in range(nodes * node_ranks):
            node, place = divmod(rank, node_ranks)
            # In each round another shift: all are met once, and each is the partner of its partner.
            if place ^ shift < node_ranks:
                partners[rank] = node * node_ranks + (place ^ shift)
        rounds.append(partners)
    return rounds


def neighbours(count: int) -> list[list[tuple[int, int]]]:
    """Return the rounds in which each of `count` nodes in a ring meets both of its neighbours."""
    if count == 2:
        return [[(0, 1)]]
    ring = [(node, node + 1) for node in range(count - 1)]
    closing = [(0, count - 1)]
    return [ring[0::2], ring[1::2], closing] if count % 2 else [ring[0::2], ring[1::2] + closing]


def partners_between_nodes(nodes: int, node_ranks: int) -> list[Partners]:
    """Return the rounds in which neighbouring nodes meet: each rank has the one at its own place on the other node."""
    rounds: list[Partners] = []
    for pairs in neighbours(nodes):
        partners: dict[int, int] = {}
        for one, other in pairs:
            for place in range(node_ranks):
                first, second = one * node_ranks + place, other * node_ranks + place
                partners |= {first: second, second: first}
        rounds.append(partners)
    return rounds


def measure_pairs(
    world: World, rounds: Sequence[Partners], unit_ranks: int, sizes: Sequence[int], repetitions: int
) -> list[PairMeasurement]:
    """Return each collective and size of each pair of units, which are `unit_ranks` ranks that follow each other.

    Each rank of the world must call this. Each pair has a process group of its own, which only its two ranks make;
    NCCL's is destroyed after the round, so a rank has one such communicator at a time, however large the cluster is.
    """
    kinds = [(collective, size) for collective in COLLECTIVES for size in sizes]
    found_of_partner: dict[int, list[tuple[int, float]]] = {}
    for partners in rounds:
        partner = partners.get(world.rank, world.rank)
        # A rank that sits out makes a group of itself: torch names such groups by their ranks and by how many there
        # are, which then is the same everywhere.
        group = dist.new_group(sorted({world.rank, partner}), use_local_synchronization=True)
        if partner == world.rank:
            for _ in kinds:
                _seconds_of_rounds(lambda: None, 1, world, repetitions)
        else:
            found = [measure_collective(collective, world, size, repetitions, group) for collective, size in kinds]
            if world.rank < partner:
                found_of_partner[partner] = [(measured.bytes, measured.seconds) for measured in found]
        # Gloo's groups are sockets and a few threads, which the world takes down when it is left.
        if world.device.type == "cuda":
            dist.destroy_process_group(group)
    return _of_units([collective for collective, _ in kinds], world.gather(found_of_partner), unit_ranks)


def _of_units(
    collectives: Sequence[Collective], found_of_ranks: Sequence[Mapping[int, list[tuple[int, float]]]], unit_ranks: int
) -> list[PairMeasurement]:
    """Return what pairs of units reach from what pairs of their ranks do: the slowest rank ends last."""
    of_units: dict[tuple[int, int], list[list[tuple[int, float]]]] = {}
    for rank, found_of_partner in enumerate(found_of_ranks):
        for partner, found in found_of_partner.items():
            of_units.setdefault((rank // unit_ranks, partner // unit_ranks), []).append(found)
    measured = []
    for pair, found_of_places in sorted(of_units.items()):
        for collective, found_at_once in zip(collectives, zip(*found_of_places, strict=True), strict=True):
            size = sum(message for message, _ in found_at_once)
            slowest = measurement(collective, 2, size, max(seconds for _, seconds in found_at_once))
            measured.append(PairMeasurement(pair, collective.name, size, slowest.seconds, slowest.bus_bytes_per_second))
    return measured
