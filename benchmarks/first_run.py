"""A newcomer's first run: how long the whole pipeline takes here, how accurate it is, how fast the second run is.

    python benchmarks/first_run.py

Runs pipelines/ddp.yaml for profile `local` in an empty runs folder, once with nothing to reuse and once with
everything. Bars: accuracy >= 0.97, first run <= 180 s, second run <= 15 s. Exit 1 when one is missed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from results import save_results

ROOT = Path(__file__).parents[1]
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))
BARS = {"test_accuracy": 0.97, "first_run_seconds": 180.0, "second_run_seconds": 15.0}


def run_pipeline(*flags: str) -> tuple[float, Path]:
    """Return the seconds of the whole process, and the run's folder."""
    started = time.perf_counter()
    command = [TRAINYARD, "run", "pipelines/ddp.yaml", "--profile", "local", "--quiet", *flags]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    seconds = time.perf_counter() - started
    listed = subprocess.run(
        [TRAINYARD, "runs", "list", "--format", "json"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return seconds, ROOT / ".trainyard" / "runs" / json.loads(listed.stdout)[0]["name"]


def main() -> int:
    first_seconds, folder = run_pipeline("--no-cache")
    second_seconds, _ = run_pipeline()
    evaluation = json.loads(next(folder.glob("jobs/evaluate/outputs/*/evaluation.json")).read_text())
    figures = {
        "test_accuracy": evaluation["accuracy"],
        "first_run_seconds": first_seconds,
        "second_run_seconds": second_seconds,
    }
    met = {
        "test_accuracy": figures["test_accuracy"] >= BARS["test_accuracy"],
        "first_run_seconds": first_seconds <= BARS["first_run_seconds"],
        "second_run_seconds": second_seconds <= BARS["second_run_seconds"],
    }
    for name, figure in figures.items():
        print(f"{name:<20} {figure:8.3f}   bar {BARS[name]:g}   {'met' if met[name] else 'MISSED'}")
    save_results("first_run", {"figures": figures, "bars": BARS})
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
