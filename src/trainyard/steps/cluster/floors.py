"""What of a cluster is slower than the floors that its settings have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainyard.settings.steps.check_cluster import CheckCluster
from trainyard.steps.cluster.figures import GB, ClusterFigures, rate_text, slowest_collectives
from trainyard.steps.cluster.picture import size_text
from trainyard.steps.cluster.slow import rates_of_units


@dataclass(frozen=True)
class Miss:
    """One rate below its floor, in bytes and GB per second, and the flag that sets the floor."""

    what: str
    rate: float
    floor_gb: float
    flag: str

    def __str__(self) -> str:
        return f"{self.what} at {rate_text(self.rate)}, below {self.floor_gb:g} GB/s"


def world_floor_gb(settings: CheckCluster, found: ClusterFigures) -> float:
    """Return the floor for collectives of the whole world in GB/s, 0 for none: the slowest link sets their rate."""
    within, between = settings.minimum_node_bus_gb_per_second, settings.minimum_network_gb_per_second
    if not found.has_several_nodes:
        return within
    return min(between, within) if within else between


def missed_floors(settings: CheckCluster, found: ClusterFigures) -> Iterator[Miss]:
    """Yield what is below its floor: within each node, then between nodes, then over the whole world."""
    floor = settings.minimum_node_bus_gb_per_second
    for number, rate in found.node_bus.items():
        if rate < floor * GB:
            what = f"{found.name('node', number)}: all-reduce within the node"
            yield Miss(what, rate, floor, "--minimum-node-bus-gb-per-second")
    if found.has_several_nodes:
        yield from _missed_between_nodes(settings, found)


def _missed_between_nodes(settings: CheckCluster, found: ClusterFigures) -> Iterator[Miss]:
    flag, floor = "--minimum-network-gb-per-second", settings.minimum_network_gb_per_second
    pairs = slowest_collectives(found.node_pairs)
    of_node = rates_of_units(pairs)
    # Two nodes have one pair: it does not tell which of them is slow.
    slow = {node: rate for node, rate in of_node.items() if rate < floor * GB} if len(of_node) > 2 else {}
    for node, rate in slow.items():
        yield Miss(f"{found.name('node', node)}: pairs with other nodes", rate, floor, flag)
    for (one, other), rate in pairs.items():
        if rate < floor * GB and one not in slow and other not in slow:
            yield Miss(f"{found.name('node', one)} and {found.name('node', other)}: the pair", rate, floor, flag)
    floor = world_floor_gb(settings, found) if floor else 0.0
    for each in found.of_largest_message():
        if each.bus_bytes_per_second < floor * GB:
            what = f"{each.operation.replace('_', '-')} of {size_text(each.bytes)} over all nodes"
            yield Miss(what, each.bus_bytes_per_second, floor, flag)
