"""How the shares of datasets that are mixed are written: their weights, such as 3,1."""

from __future__ import annotations

from fractions import Fraction

MIXED_DATASETS = ("data", "data_2", "data_3", "data_4")
"""The inputs of a training whose samples are mixed, in the order of their weights."""


def read_weights(text: str, datasets: int) -> tuple[Fraction, ...]:
    """Return a weight for each of so many datasets. ValueError says what is wrong, beginning with the text."""
    try:
        weights = tuple(Fraction(part.strip()) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        weights = ()
    if not weights or any(weight <= 0 for weight in weights):
        raise ValueError(f"{text!r}: expected a positive number for each dataset, such as 3,1")
    if datasets == 1:
        raise ValueError(f"{text}: there is only one dataset; name others as data_2 to data_4")
    if len(weights) != datasets:
        raise ValueError(f"{text}: {len(weights)} weights for {datasets} datasets")
    return weights
