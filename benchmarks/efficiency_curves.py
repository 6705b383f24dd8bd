"""Fit the efficiency curve of each GPU generation to the published trainings marked for it.

    python benchmarks/efficiency_curves.py

Writes src/trainyard/plan/estimate/efficiency.csv: of each curve the two numbers with the least mean error over the
marked rows. A generation with rows of hardly more than one width has only its height fitted, and the rest from its
neighbour.
"""

from __future__ import annotations

import csv
import statistics
import sys

import results
from trainyard.plan.estimate import compute
from trainyard.plan.estimate.compute import Efficiency

sys.path.insert(0, str(results.ROOT / "docs"))
from published_trainings import Published, rows_of

FILE = compute._CSV_FILE
HEIGHTS = [step / 200 for step in range(40, 200)]
HALVES = (10, 20, 50, 100, 150, 200, 250, 300, 400, 500, 600, 800)
SAME_HALF_AS = {"Hopper H200": "Hopper"}
BY = "fitted by benchmarks/efficiency_curves.py"


def fitted(generation: str, rows: list[Published], halves: tuple[float, ...]) -> Efficiency:
    """Return the curve with the least mean error over these rows."""
    curves = (Efficiency(generation, height, half, BY) for height in HEIGHTS for half in halves)
    return min(curves, key=lambda curve: statistics.fmean(abs(row.time_error(curve)) for row in rows))


def main() -> None:
    """Fit every curve with marked rows, keep the others, and print what became of each."""
    curves = dict(compute.efficiency_curves())
    for generation in curves:
        if rows := [row for row in rows_of(generation) if row.is_fitted]:
            neighbour = SAME_HALF_AS.get(generation)
            curves[generation] = fitted(generation, rows, (curves[neighbour].half_at,) if neighbour else HALVES)
            print(f"{generation}: {curves[generation]} from {len(rows)} rows")
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("generation", "highest", "half_at", "source"))
        writer.writerows((name, curve.highest, curve.half_at, curve.source) for name, curve in curves.items())


if __name__ == "__main__":
    main()
