"""What was measured of a cluster, and how its nodes and ranks are named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainyard.steps.cluster.bandwidth import Measurement, PairMeasurement
from trainyard.steps.cluster.node import Facts

GB = 1e9


@dataclass
class ClusterFigures:
    """What was measured, in bytes per second and FLOP per second; the same on every rank."""

    nodes: list[Facts]
    arithmetic: dict[int, float]
    """By rank."""
    network: str | None
    collectives: list[Measurement] = field(default_factory=list)
    node_bus: dict[int, float] = field(default_factory=dict)
    """By node: the bus bandwidth of the largest all-reduce within it. Empty with one process per node."""
    node_pairs: list[PairMeasurement] = field(default_factory=list)
    rank_pairs: list[PairMeasurement] = field(default_factory=list)
    """Of ranks on the same node."""

    @property
    def has_several_nodes(self) -> bool:
        """Whether anything went over a network."""
        return len(self.nodes) > 1

    def of_largest_message(self) -> list[Measurement]:
        """Return the measurement of each collective with the largest message."""
        largest = max((measured.bytes for measured in self.collectives), default=0)
        return [measured for measured in self.collectives if measured.bytes == largest]

    @property
    def processes_per_node(self) -> int:
        """How many ranks a node has."""
        return len(self.arithmetic) // len(self.nodes)

    def name(self, unit: str, number: int) -> str:
        """Return `node 3 (its host)`, or `rank 5 on node 0 (its host)`."""
        node = number if unit == "node" else number // self.processes_per_node
        place = f"node {node} ({self.nodes[node]['host']})"
        return place if unit == "node" else f"rank {number} on {place}"


def slowest_collectives(pairs: Sequence[PairMeasurement]) -> dict[tuple[int, int], float]:
    """Return each pair's lowest bus bandwidth among its collectives of the largest message."""
    largest = max((measured.bytes for measured in pairs), default=0)
    rates: dict[tuple[int, int], float] = {}
    for measured in pairs:
        if measured.bytes == largest:
            rates[measured.pair] = min(measured.bus_bytes_per_second, rates.get(measured.pair, math.inf))
    return rates


def rate_text(bytes_per_second: float) -> str:
    """Return `228 GB/s`."""
    return f"{bytes_per_second / GB:.3g} GB/s"


def size_text(size_bytes: int) -> str:
    """Return `64 KiB`, `16 MiB`, `4 GiB`: the largest unit in which at least one."""
    for exponent, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**exponent:
            return f"{size_bytes / 1024**exponent:.4g} {name}"
    return f"{size_bytes} bytes"
