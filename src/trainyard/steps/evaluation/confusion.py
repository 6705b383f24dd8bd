"""A confusion matrix (rows: true classes, columns: predicted ones) as figures per class and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainyard.settings.quantities import cut
from trainyard.steps.runtime.pictures import GRID, INK, SOFT, new_figure, quiet_frame

Counts = npt.NDArray[np.int64]

_FONT_SIZES = ((12, 9.5), (30, 7.0), (math.inf, 6.0))
"""Of names and numbers, by the most classes that each is for."""
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
    count = len(names)
    side_inches = min(14.0, max(4.2, 0.42 * count + 2.2))
    figure = new_figure(side_inches, side_inches, title)
    axes = figure.add_subplot()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(_colours(shares), interpolation="nearest", aspect="equal")
    size = next(size for most, size in _FONT_SIZES if count <= most)
    if count <= _MOST_CLASSES_WITH_NUMBERS:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            colour = "white" if shares[row, column] > (0.55 if row == column else 0.3) else INK
            text = str(matrix[row, column])
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)
    ticks = range(0, count, 1 if count <= _MOST_CLASSES_WITH_NAMES else 5)
    labels = [cut(names[number], _LONGEST_NAME_CHARACTERS) for number in ticks]
    is_long = max(len(label) for label in labels) > 3
    axes.set_xticks(ticks, labels, rotation=45 if is_long else 0, ha="right" if is_long else "center", fontsize=size)
    axes.set_yticks(ticks, labels, fontsize=size)
    axes.set_xticks(np.arange(-0.5, count), minor=True)
    axes.set_yticks(np.arange(-0.5, count), minor=True)
    axes.grid(which="minor", color=GRID, linewidth=0.4)
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel("predicted class", color=SOFT, labelpad=8)
    axes.set_ylabel("true class", color=SOFT, labelpad=8)
    quiet_frame(axes)
    figure.savefig(file, facecolor="white", metadata={"Software": None})


def _colours(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return white to blue on the diagonal, white to red off it; the square root makes small shares visible."""
    blue, red = np.array([0.10, 0.33, 0.62]), np.array([0.78, 0.20, 0.16])
    right = np.eye(len(shares), dtype=bool)
    strength = np.where(right, shares, np.sqrt(shares))[..., None]
    target = np.where(right[..., None], blue, red)
    colours: npt.NDArray[np.float64] = 1 - strength * (1 - target)
    return colours


def _ratio(numerator: npt.NDArray[np.generic], denominator: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
