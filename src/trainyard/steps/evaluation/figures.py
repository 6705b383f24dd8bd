"""Figures per class from a confusion matrix (rows: true classes, columns: predicted ones)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]


def class_figures(matrix: Counts, names: Sequence[str]) -> list[dict[str, str | float | int]]:
    """Precision, recall, F1 and support of each class; a ratio without a denominator is 0."""
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


def _ratio(numerator: npt.NDArray[np.generic], denominator: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    top, bottom = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
