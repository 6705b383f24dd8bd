"""The measurements as one picture: bus bandwidth over message sizes, and what each rank and each node reaches."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.steps.cluster.bandwidth import Measurement, PairMeasurement
from trainyard.steps.cluster.figures import GB, ClusterFigures, size_text, slowest_collectives
from trainyard.steps.cluster.problems import rates_of_units
from trainyard.steps.runtime.pictures import BLUE, GREEN, GRID, LINE, RED, SOFT, new_figure, quiet_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"all_reduce": BLUE, "all_gather": RED, "reduce_scatter": GREEN}


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
    axes.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, ha="right", fontsize=8)
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
