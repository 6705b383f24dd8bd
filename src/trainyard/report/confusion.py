"""The confusion matrix as a heat map, and the classes that are most often confused."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainyard.report.job_results import ConfusionMatrix

# Beyond the first, cells are too small for their count; beyond the second, too small to distinguish.
MOST_CLASSES_WITH_COUNTS = 24
MOST_CLASSES_DRAWN = 120
_MOST_MISTAKES = 5


@dataclass(frozen=True)
class Cell:
    """One count; `heat` is the strength of its colour, 0…1."""

    x: float
    y: float
    heat: float
    count: int
    is_correct: bool
    tooltip: str


@dataclass(frozen=True)
class Confusion:
    """How often one class was predicted as another, and the share of that class."""

    true: str
    predicted: str
    count: int
    share: float


@dataclass(frozen=True)
class HeatMap:
    """The drawn matrix, in units of one pixel."""

    classes: tuple[str, ...]
    cells: tuple[Cell, ...]
    cell_size: float
    left: float
    top: float
    width: float
    height: float
    has_counts: bool


def draw_heat_map(confusion: ConfusionMatrix) -> HeatMap | None:
    """Return the matrix, row by row; None if it has too many classes to draw."""
    number = len(confusion.classes)
    if number > MOST_CLASSES_DRAWN:
        return None
    has_counts = number <= MOST_CLASSES_WITH_COUNTS
    cell_size = 36.0 if number <= 12 else 28.0 if has_counts else 6.0
    longest = max(len(name) for name in confusion.classes)
    margin = min(longest, 14) * 7 + 34 if has_counts else 30
    top = margin if longest > 3 and has_counts else 46.0
    cells = tuple(
        _cell(confusion, row, column, margin + column * cell_size, top + row * cell_size)
        for row in range(number)
        for column in range(number)
        if has_counts or confusion.matrix[row][column]
    )
    size = number * cell_size
    # The slanted names of the last columns extend beyond the matrix.
    overhang = top * 0.6 if longest > 3 and has_counts else 4
    return HeatMap(
        confusion.classes, cells, cell_size, margin, top, margin + size + overhang, top + size + 4, has_counts
    )


def most_frequent_mistakes(confusion: ConfusionMatrix) -> list[Confusion]:
    """Return the pairs of classes that are most often confused, the most frequent first."""
    mistakes = [
        Confusion(confusion.classes[row], confusion.classes[column], cell, cell / sum(cells))
        for row, cells in enumerate(confusion.matrix)
        for column, cell in enumerate(cells)
        if row != column and cell > 0
    ]
    return sorted(mistakes, key=lambda mistake: -mistake.count)[:_MOST_MISTAKES]


def _cell(confusion: ConfusionMatrix, row: int, column: int, x: float, y: float) -> Cell:
    count = confusion.matrix[row][column]
    total = sum(confusion.matrix[row])
    share = count / total if total else 0.0
    true, predicted = confusion.classes[row], confusion.classes[column]
    return Cell(
        x=round(x, 1),
        y=round(y, 1),
        # The root makes a few mistakes among many samples visible.
        heat=round(math.sqrt(share), 3),
        count=count,
        is_correct=row == column,
        tooltip=f"true {true}, predicted {predicted}: {count} of {total}",
    )
