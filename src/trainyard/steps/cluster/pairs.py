"""The bandwidth of pairs of nodes, and of pairs of the ranks within a node, in a tournament.

In each round every node has another partner, and all pairs measure at once: n nodes take n - 1 rounds, in which all
pairs have met, and no more rounds are played than asked for. Each pair has a process group of its own. Only its two
ranks take part in making it, and NCCL's is destroyed after the round: a rank has one such communicator at a time,
however large the cluster is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainyard.steps.cluster.bandwidth import COLLECTIVES, Collective, Team, measure_collective, measurement, sit_out
from trainyard.steps.runtime.world import World


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
"""The partner of each rank in a round; one that sits out is not among them."""


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


def partners_between_nodes(nodes: int, node_ranks: int, most_rounds: int) -> list[Partners]:
    """Return the rounds in which nodes meet: each rank has the one at its own place on the other node."""
    return [
        {
            node * node_ranks + place: other * node_ranks + place
            for node, other in partners.items()
            for place in range(node_ranks)
        }
        for partners in rounds_of_pairs(nodes, most_rounds)
    ]


def partners_within_nodes(nodes: int, node_ranks: int, most_rounds: int) -> list[Partners]:
    """Return the rounds in which the ranks of each node meet, in all nodes at once."""
    return [
        {
            node * node_ranks + place: node * node_ranks + other
            for place, other in partners.items()
            for node in range(nodes)
        }
        for partners in rounds_of_pairs(node_ranks, most_rounds)
    ]


def measure_pairs(
    world: World,
    rounds: Sequence[Partners],
    unit_ranks: int,
    sizes: Sequence[int],
    repetitions: int,
    most_seconds: float,
) -> list[PairMeasurement]:
    """Return each collective and size of each pair of units, which are `unit_ranks` ranks that follow each other.

    No round begins after `most_seconds`; each rank of the world must call this.
    """
    kinds = [(collective, size) for collective in COLLECTIVES for size in sizes]
    found_of_partner: dict[int, list[tuple[int, float]]] = {}
    start = time.monotonic()
    for number, partners in enumerate(rounds):
        is_late = number > 0 and time.monotonic() - start > most_seconds
        if world.sum(torch.tensor(float(is_late))).item() > 0:
            world.log(f"{number} of {len(rounds)} rounds of pairs took {most_seconds:g} seconds: no more are played")
            break
        partner = partners.get(world.rank, world.rank)
        # Of both backends of a GPU's world the pair needs NCCL alone. A rank that sits out makes a group of itself:
        # torch names such groups by their ranks and by how many there are, which then is the same everywhere.
        backend = "nccl" if world.device.type == "cuda" else "gloo"
        group = dist.new_group(sorted({world.rank, partner}), backend=backend, use_local_synchronization=True)
        if partner == world.rank:
            for _ in kinds:
                sit_out(world, repetitions)
        else:
            team = Team(group, 2)
            found = [measure_collective(collective, world, size, repetitions, team) for collective, size in kinds]
            if world.rank < partner:
                found_of_partner[partner] = [(each.bytes, each.seconds) for each in found]
        # Gloo's groups are sockets and a few threads, which the world takes down when it is left.
        if backend == "nccl":
            dist.destroy_process_group(group)
    return _of_units([each for each, _ in kinds], world.gather(found_of_partner), unit_ranks)


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
            size = sum(each for each, _ in found_at_once)
            slowest = measurement(collective, 2, size, max(seconds for _, seconds in found_at_once))
            measured.append(PairMeasurement(pair, collective.name, size, slowest.seconds, slowest.bus_bytes_per_second))
    return measured
