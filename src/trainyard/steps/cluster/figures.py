"""What was measured of a cluster, how its nodes and ranks are named, and the figures as one picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.settings.quantities import memory
from trainyard.steps.cluster.bandwidth import Measurement, PairMeasurement
from trainyard.steps.cluster.node import Facts
from trainyard.steps.runtime.pictures import BLUE, GREEN, GRID, LINE, RED, SOFT, new_figure, quiet_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GB = 1e9
_COLOURS = {"all_reduce": BLUE, "all_gather": RED, "reduce_scatter": GREEN}


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


def rates_of_units(pairs: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Return each unit's rate in the best of its pairs.

    A slow unit lowers all of its own pairs, and a single one of each other unit: so the best pair finds it where there
    are at least three units. With two there is no telling which side of a slow pair is to blame.
    """
    best: dict[int, float] = {}
    for pair, rate in pairs.items():
        for unit in pair:
            best[unit] = max(rate, best.get(unit, 0.0))
    return dict(sorted(best.items()))


def rate_text(bytes_per_second: float) -> str:
    """Return `228 GB/s`."""
    return f"{bytes_per_second / GB:.3g} GB/s"


def draw_cluster(found: ClusterFigures, floor_bytes_per_second: float, title: str, file: Path) -> None:
    """Write a PNG: the whole world and pairs over message sizes, and how fast each rank and node is. A floor of 0 is
    not drawn."""
    of_pairs = [(unit, pairs) for unit, pairs in (("rank", found.rank_pairs), ("node", found.node_pairs)) if pairs]
    columns = 1 + len(of_pairs)
    figure = new_figure(0.8 + 5.4 * columns, 8.6, title)
    panels = figure.subplots(2, columns, squeeze=False)
    if floor_bytes_per_second:
        panels[0][0].axhline(floor_bytes_per_second / GB, color=SOFT, linestyle="--", linewidth=1, label="floor")
    _draw_over_sizes(panels[0][0], "all ranks", found.collectives)
    _draw_bars(panels[1][0], "matrix products, TFLOP/s", "rank", found.arithmetic, 1e12)
    for column, (unit, pairs) in enumerate(of_pairs, 1):
        _draw_over_sizes(panels[0][column], f"pairs of {unit}s: median, slowest to fastest", pairs)
        best = rates_of_units(slowest_collectives(pairs))
        _draw_bars(panels[1][column], f"each {unit}'s best pair, slowest collective, GB/s", unit, best, GB)
    figure.savefig(file, facecolor="white", metadata={"Software": None})


def _draw_over_sizes(axes: Axes, title: str, measurements: Sequence[Measurement | PairMeasurement]) -> None:
    """Draw the median of each size as a line, and from the slowest to the fastest as a band."""
    sizes = sorted({measured.bytes for measured in measurements})
    for operation, colour in _COLOURS.items():
        rates: dict[int, list[float]] = {size: [] for size in sizes}
        for measured in measurements:
            if measured.operation == operation:
                rates[measured.bytes].append(measured.bus_bytes_per_second / GB)
        slowest, fastest = list(map(min, rates.values())), list(map(max, rates.values()))
        axes.fill_between(sizes, slowest, fastest, color=colour, alpha=0.15)
        medians = list(map(statistics.median, rates.values()))
        axes.plot(sizes, medians, marker="o", markersize=4, color=colour, label=operation.replace("_", "-"))
    axes.set_title(title, loc="left", fontsize=10, color=SOFT)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [memory(size) for size in sizes], rotation=45, ha="right", fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("message", color=SOFT)
    axes.set_ylabel("bus bandwidth, GB/s", color=SOFT)
    axes.grid(color=GRID, linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    quiet_frame(axes)


def _draw_bars(axes: Axes, title: str, unit: str, rates: Mapping[int, float], scale: float) -> None:
    axes.bar(list(rates), [rate / scale for rate in rates.values()], color=LINE)
    axes.set_title(title, loc="left", fontsize=10, color=SOFT)
    axes.set_xlabel(unit, color=SOFT)
    axes.locator_params(axis="x", integer=True)
    quiet_frame(axes)
