"""A confusion matrix (rows: true classes, columns: predicted ones) as figures per class and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.settings.quantities import cut

Counts = npt.NDArray[np.int64]

_FEW_CLASSES = 12
_MOST_CLASSES_WITH_NUMBERS = 30
_MOST_CLASSES_WITH_NAMES = 60
_LONGEST_NAME_CHARACTERS = 18


def class_figures(matrix: Counts, names: Sequence[str]) -> list[dict[str, str | float | int]]:
    """Return precision, recall, F1 and support of each class; a ratio with denominator 0 is 0."""
    correct = matrix.diagonal()
    precision = _ratio(correct, matrix.sum(axis=0))
    recall = _ratio(correct, matrix.sum(axis=1))
    f1 = _ratio(2 * precision * recall, precision + recall)
    return [
        {
            "name": name,
            "precision": float(precision[number]),
            "recall": float(recall[number]),
            "f1": float(f1[number]),
            "support": int(matrix[number].sum()),
        }
        for number, name in enumerate(names)
    ]


def draw_confusion_matrix(matrix: Counts, names: Sequence[str], title: str, file: Path) -> None:
    """Write a PNG: the colour is the share of the true class, the number the count.

    Mistakes matter most, so they have their own colour, on a scale that makes even a few visible.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(names)
    side_inches = min(14.0, max(4.2, 0.42 * count + 2.2))
    figure = Figure(figsize=(side_inches, side_inches), dpi=120 if count <= 30 else 100)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(_colours(shares), interpolation="nearest", aspect="equal")

    if count <= _MOST_CLASSES_WITH_NUMBERS:
        size = _font_size(count, medium_up_to=20, smallest=5.5)
        for row, column in zip(*np.nonzero(matrix), strict=True):
            is_dark = shares[row, column] > (0.55 if row == column else 0.3)
            text = f"{matrix[row, column]}"
            axes.text(
                column, row, text, ha="center", va="center", fontsize=size, color="white" if is_dark else "#1b2430"
            )
    _label_axes(axes, names)
    axes.set_xlabel("predicted class", color="#47525f", labelpad=8)
    axes.set_ylabel("true class", color="#47525f", labelpad=8)
    axes.set_title(title, loc="left", fontsize=11.5, color="#1b2430", pad=12)
    figure.savefig(file, bbox_inches="tight", facecolor="white", metadata={"Software": None})


def _colours(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return white to blue on the diagonal, white to red off it; the square root makes small shares visible."""
    blue, red = np.array([0.10, 0.33, 0.62]), np.array([0.78, 0.20, 0.16])
    right = np.eye(len(shares), dtype=bool)
    strength = np.where(right, shares, np.sqrt(shares))[..., None]
    target = np.where(right[..., None], blue, red)
    colours: npt.NDArray[np.float64] = 1 - strength * (1 - target)
    return colours


def _label_axes(axes: object, names: Sequence[str]) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    count = len(names)
    every = 1 if count <= _MOST_CLASSES_WITH_NAMES else 5
    ticks = list(range(0, count, every))
    labels = [cut(names[number], _LONGEST_NAME_CHARACTERS) for number in ticks]
    size = _font_size(count, medium_up_to=30, smallest=6.0)
    is_long = max(len(label) for label in labels) > 3
    axes.set_xticks(ticks, labels, rotation=45 if is_long else 0, ha="right" if is_long else "center", fontsize=size)
    axes.set_yticks(ticks, labels, fontsize=size)
    axes.tick_params(length=0, colors="#47525f")
    axes.set_xticks(np.arange(-0.5, count), minor=True)
    axes.set_yticks(np.arange(-0.5, count), minor=True)
    axes.grid(which="minor", color="#e3e8ee", linewidth=0.6 if count <= 30 else 0.3)
    axes.tick_params(which="minor", length=0)
    for spine in axes.spines.values():
        spine.set_color("#c7d0da")


def _ratio(numerator: npt.NDArray[np.generic], denominator: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


def _font_size(count: int, medium_up_to: int, smallest: float) -> float:
    """Return the size of letters beside or in so many rows."""
    if count <= _FEW_CLASSES:
        return 9.5
    return 7.5 if count <= medium_up_to else smallest
