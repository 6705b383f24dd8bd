"""The measurements as one picture: bus bandwidth over message sizes, of all ranks and of pairs, and each pair's."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainyard.steps.cluster.bandwidth import Measurement, PairMeasurement
from trainyard.steps.cluster.figures import ClusterFigures, size_text, slowest_collectives
from trainyard.steps.cluster.problems import rates_of_units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"all_reduce": "#1a559e", "all_gather": "#c7332a", "reduce_scatter": "#2b7a3f"}
_INK, _SOFT, _LINE = "#1b2430", "#47525f", "#c7d0da"
_MOST_UNITS_WITH_NUMBERS = 12
_GB = 1e9


def draw_cluster(found: ClusterFigures, floor_bytes_per_second: float, title: str, file: Path) -> None:
    """Write a PNG: the whole world and pairs over message sizes, and each pair's rate. A floor of 0 is not drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    of_pairs = [(unit, pairs) for unit, pairs in (("rank", found.rank_pairs), ("node", found.node_pairs)) if pairs]
    columns = 1 + len(of_pairs)
    figure = Figure(figsize=(0.8 + 5.4 * columns, 8.6 if of_pairs else 4.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, color=_INK)
    panels = figure.subplots(2 if of_pairs else 1, columns, squeeze=False)
    _draw_collectives(panels[0][0], found.collectives, floor_bytes_per_second)
    if of_pairs:
        _draw_arithmetic(panels[1][0], found)
    for column, (unit, pairs) in enumerate(of_pairs, 1):
        _draw_pairs_over_sizes(panels[0][column], pairs, unit)
        if unit == "node":
            _draw_neighbours(panels[1][column], slowest_collectives(pairs))
        elif found.has_several_nodes:
            _draw_ranks_of_nodes(panels[1][column], found)
        else:
            _draw_rank_pairs(panels[1][column], slowest_collectives(pairs))
    figure.savefig(file, facecolor="white", metadata={"Software": None})


def _draw_collectives(axes: Axes, measurements: Sequence[Measurement], floor_bytes_per_second: float) -> None:
    for operation in dict.fromkeys(measured.operation for measured in measurements):
        found = [measured for measured in measurements if measured.operation == operation]
        axes.plot(
            [measured.bytes for measured in found],
            [measured.bus_bytes_per_second / _GB for measured in found],
            marker="o", markersize=4, color=_COLOURS[operation], label=operation.replace("_", "-"),
        )  # fmt: skip
    if floor_bytes_per_second:
        axes.axhline(floor_bytes_per_second / _GB, color=_SOFT, linestyle="--", linewidth=1, label="floor")
    axes.set_title("all ranks", loc="left", fontsize=10, color=_SOFT)
    _draw_axes_of_sizes(axes, sorted({measured.bytes for measured in measurements}))


def _draw_pairs_over_sizes(axes: Axes, pairs: Sequence[PairMeasurement], unit: str) -> None:
    """Draw the median pair as a line, and from the slowest to the fastest as a band."""
    sizes = sorted({pair.bytes for pair in pairs})
    for operation in dict.fromkeys(pair.operation for pair in pairs):
        rates: dict[int, list[float]] = {size: [] for size in sizes}
        for pair in pairs:
            if pair.operation == operation:
                rates[pair.bytes].append(pair.bus_bytes_per_second / _GB)
        colour = _COLOURS[operation]
        slowest, fastest = list(map(min, rates.values())), list(map(max, rates.values()))
        axes.fill_between(sizes, slowest, fastest, color=colour, alpha=0.15)
        axes.plot(
            sizes, list(map(statistics.median, rates.values())),
            marker="o", markersize=4, color=colour, label=operation.replace("_", "-"),
        )  # fmt: skip
    axes.set_title(f"pairs of {unit}s: median, slowest to fastest", loc="left", fontsize=10, color=_SOFT)
    _draw_axes_of_sizes(axes, sizes)


def _draw_axes_of_sizes(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, ha="right", fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("message", color=_SOFT)
    axes.set_ylabel("bus bandwidth, GB/s", color=_SOFT)
    axes.grid(color="#e3e8ee", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    _quiet_frame(axes)


def _draw_arithmetic(axes: Axes, found: ClusterFigures) -> None:
    axes.bar(list(found.arithmetic), [rate / 1e12 for rate in found.arithmetic.values()], color=_LINE)
    axes.set_xlabel("rank", color=_SOFT)
    axes.set_ylabel("TFLOP/s", color=_SOFT)
    axes.set_title("matrix products", loc="left", fontsize=10, color=_SOFT)
    axes.set_xticks(*_ticks(len(found.arithmetic)))
    _quiet_frame(axes)


def _draw_neighbours(axes: Axes, pairs: Mapping[tuple[int, int], float]) -> None:
    axes.bar(range(len(pairs)), [rate / _GB for rate in pairs.values()], color=_LINE)
    axes.set_xlabel("pair of nodes", color=_SOFT)
    axes.set_ylabel("GB/s", color=_SOFT)
    axes.set_title("largest message, slowest collective: neighbouring nodes", loc="left", fontsize=10, color=_SOFT)
    names = [f"{one}-{other}" for one, other in pairs]
    places, _ = _ticks(len(pairs))
    axes.set_xticks(places, [names[place] for place in places], rotation=45, ha="right", fontsize=8)
    _quiet_frame(axes)


def _draw_rank_pairs(axes: Axes, pairs: Mapping[tuple[int, int], float]) -> None:
    count = 1 + max(other for _, other in pairs)
    rates = np.full((count, count), np.nan)
    for (one, other), rate in pairs.items():
        rates[one, other] = rates[other, one] = rate / _GB
    _draw_rates(axes, rates, "rank", "rank")
    axes.set_title("largest message, slowest collective, GB/s by pair of ranks", loc="left", fontsize=10, color=_SOFT)


def _draw_ranks_of_nodes(axes: Axes, found: ClusterFigures) -> None:
    per_node = found.processes_per_node
    rates = np.full((len(found.nodes), per_node), np.nan)
    for rank, rate in rates_of_units(slowest_collectives(found.rank_pairs)).items():
        rates[divmod(rank, per_node)] = rate / _GB
    _draw_rates(axes, rates, "node", "local rank")
    axes.set_title(
        "largest message, slowest collective, GB/s: a rank's best pair", loc="left", fontsize=10, color=_SOFT
    )


def _draw_rates(axes: Axes, rates: np.ndarray[Any, np.dtype[np.float64]], of_rows: str, of_columns: str) -> None:
    image = axes.imshow(rates, cmap="Blues", vmin=0, interpolation="nearest", aspect="auto")
    if max(rates.shape) <= _MOST_UNITS_WITH_NUMBERS:
        highest = np.nanmax(rates)
        for (row, column), rate in np.ndenumerate(rates):
            if not np.isnan(rate):
                colour = "white" if rate > 0.55 * highest else _INK
                axes.text(column, row, f"{rate:.3g}", ha="center", va="center", fontsize=8, color=colour)
    rows, columns = rates.shape
    axes.set_yticks(*_ticks(rows))
    axes.set_xticks(*_ticks(columns))
    axes.set_ylabel(of_rows, color=_SOFT)
    axes.set_xlabel(of_columns, color=_SOFT)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    _quiet_frame(axes)


def _ticks(count: int) -> tuple[list[int], list[str]]:
    places = [int(place) for place in np.unique(np.linspace(0, count - 1, min(count, 16)).round())]
    return places, [str(place) for place in places]


def _quiet_frame(axes: Axes) -> None:
    axes.tick_params(length=0, colors=_SOFT)
    for spine in axes.spines.values():
        spine.set_color(_LINE)
