"""Fit the efficiency curve of each GPU generation to the published trainings marked for it.

    python benchmarks/efficiency_curves.py

Writes src/trainyard/plan/estimate/efficiency.csv: of each curve the number with the least mean error over the documents
of the marked rows, of which each counts the same; where these are of software of several years since 2024, also what a
year adds.
"""

from __future__ import annotations

import csv
import statistics
import sys
from dataclasses import replace

import results
from trainyard.plan.estimate import compute
from trainyard.plan.estimate.compute import Efficiency

sys.path.insert(0, str(results.ROOT / "docs"))
from published_trainings import Published, rows_of

FILE = compute._CSV_FILE
HEIGHTS = [step / 200 for step in range(40, 200)]
GAINS = [step / 200 for step in range(41)]
BY = "fitted by benchmarks/efficiency_curves.py"


def fitted(generation: str, rows: list[Published]) -> Efficiency:
    """Return the curve with the least mean error over the documents of these rows."""
    documents = [[row for row in rows if row.source == source] for source in dict.fromkeys(row.source for row in rows)]
    is_of_years = len({max(row.training.stack_year, 2024) for row in rows}) > 1
    gains = GAINS if is_of_years else [0.0]
    curves = (Efficiency(generation, "", height, gain, BY) for height in HEIGHTS for gain in gains)

    def error(curve: Efficiency) -> float:
        return statistics.fmean(statistics.fmean(abs(row.time_error(curve)) for row in some) for some in documents)

    return min(curves, key=error)


def main() -> None:
    """Fit every curve with marked rows, keep the others, and print what became of each."""
    curves = dict(compute.efficiency_curves())
    for generation in curves:
        if curves[generation].taken_from:
            near = curves[curves[generation].taken_from]
            curves[generation] = replace(curves[generation], highest=near.highest, yearly=near.yearly)
        elif rows := [row for row in rows_of(generation) if row.is_fitted]:
            curves[generation] = fitted(generation, rows)
            print(f"{generation}: {curves[generation]} from {len(rows)} rows")
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Efficiency.__dataclass_fields__)
        writer.writerows(vars(curve).values() for curve in curves.values())


if __name__ == "__main__":
    main()
