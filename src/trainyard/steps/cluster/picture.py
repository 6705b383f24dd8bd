"""The measurements as one picture: bus bandwidth over message sizes, and the bandwidth of each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainyard.steps.cluster.bandwidth import Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"all_reduce": "#1a559e", "all_gather": "#c7332a", "reduce_scatter": "#2b7a3f"}
_INK, _SOFT, _LINE = "#1b2430", "#47525f", "#c7d0da"
_MOST_UNITS_WITH_NUMBERS = 12
_GB = 1e9


def draw_cluster(
    measurements: Sequence[Measurement],
    pairs: Mapping[tuple[int, int], float],
    unit: str,
    floor_bytes_per_second: float,
    title: str,
    file: Path,
) -> None:
    """Write a PNG. `unit` is what pairs are of: node or rank. A floor of 0 is not drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5 if pairs else 6.5, 4.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, color=_INK)
    panels = figure.subplots(1, 2 if pairs else 1, squeeze=False)[0]
    _draw_collectives(panels[0], measurements, floor_bytes_per_second)
    if pairs:
        _draw_pairs(panels[1], pairs, unit)
    figure.savefig(file, facecolor="white", metadata={"Software": None})


def _draw_collectives(axes: Axes, measurements: Sequence[Measurement], floor_bytes_per_second: float) -> None:
    for operation in dict.fromkeys(each.operation for each in measurements):
        found = [each for each in measurements if each.operation == operation]
        axes.plot(
            [each.bytes for each in found],
            [each.bus_bytes_per_second / _GB for each in found],
            marker="o", markersize=4, color=_COLOURS[operation], label=operation.replace("_", "-"),
        )  # fmt: skip
    if floor_bytes_per_second:
        axes.axhline(floor_bytes_per_second / _GB, color=_SOFT, linestyle="--", linewidth=1, label="floor")
    axes.set_xscale("log", base=2)
    sizes = sorted({each.bytes for each in measurements})
    axes.set_xticks(sizes, [size_text(size) for size in sizes], rotation=45, ha="right", fontsize=8)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("message", color=_SOFT)
    axes.set_ylabel("bus bandwidth, GB/s", color=_SOFT)
    axes.grid(color="#e3e8ee", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    _quiet_frame(axes)


def _draw_pairs(axes: Axes, pairs: Mapping[tuple[int, int], float], unit: str) -> None:
    count = 1 + max(other for _, other in pairs)
    rates = np.full((count, count), np.nan)
    for (one, other), rate in pairs.items():
        rates[one, other] = rates[other, one] = rate / _GB
    image = axes.imshow(rates, cmap="Blues", vmin=0, interpolation="nearest")
    if count <= _MOST_UNITS_WITH_NUMBERS:
        highest = np.nanmax(rates)
        for (row, column), rate in np.ndenumerate(rates):
            if not np.isnan(rate):
                colour = "white" if rate > 0.55 * highest else _INK
                axes.text(column, row, f"{rate:.3g}", ha="center", va="center", fontsize=8, color=colour)
    ticks = np.unique(np.linspace(0, count - 1, min(count, 16)).round().astype(int))
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel(unit, color=_SOFT)
    axes.set_ylabel(unit, color=_SOFT)
    axes.set_title(f"GB/s in each direction, by pair of {unit}s", loc="left", fontsize=10, color=_SOFT)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
    _quiet_frame(axes)


def _quiet_frame(axes: Axes) -> None:
    axes.tick_params(length=0, colors=_SOFT)
    for spine in axes.spines.values():
        spine.set_color(_LINE)


def size_text(size_bytes: int) -> str:
    """Return `64 KiB`, `16 MiB`, `4 GiB`: the largest unit in which at least one."""
    for exponent, name in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**exponent:
            return f"{size_bytes / 1024**exponent:.4g} {name}"
    return f"{size_bytes} bytes"
