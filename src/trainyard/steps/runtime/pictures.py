"""Pictures of what was measured, drawn by matplotlib in one style."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainyard.steps.runtime.imports import from_extra, require_packages

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, LINE, GRID = "#1b2430", "#47525f", "#c7d0da", "#e3e8ee"
BLUE, RED, GREEN = "#1a559e", "#c7332a", "#2b7a3f"


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure of this size in inches. SetupError without matplotlib."""
    require_packages("drawing a picture", from_extra("train"), "matplotlib.figure")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, color=INK)
    return figure


def quiet_frame(axes: Axes) -> None:
    """Draw ticks and the frame so that they stay behind what is measured."""
    axes.tick_params(length=0, colors=SOFT)
    for spine in axes.spines.values():
        spine.set_color(LINE)
