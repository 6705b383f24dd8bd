"""How many training scripts for GPUs take their first five steps here: `trainyard run job.yml --without-gpus`.

    python benchmarks/public_scripts.py FOLDER [--python PYTHON] [NAME...]

Each folder in FOLDER has a script and a `job.yml` of two nodes with two processes each; `scripts.csv` in FOLDER has the
columns folder, repository, commit, path and adapted (what was changed). A script counts when all four processes have
taken five optimizer steps, or end rightly after fewer. Prints a Markdown table, and of each failure the job's reason.
docs/public_scripts.md has the scripts and what was adapted: their code is not kept here.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

COUNTER = Path(__file__).parent / "count_steps"
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))
STEPS = 5
PROCESSES = 4
LIMIT_SECONDS = 400


@dataclass(frozen=True)
class Outcome:
    """`steps`: of each process that took any. `reason`: why the job failed, or empty."""

    steps: tuple[int, ...]
    reason: str

    @property
    def counts(self) -> bool:
        return not self.reason and len(self.steps) == PROCESSES

    def __str__(self) -> str:
        taken = f"{min(self.steps)} steps" if self.steps else "no step"
        return taken if self.counts else f"{taken}: {self.reason or f'{len(self.steps)} processes trained'}"


def run(folder: Path, python: str) -> Outcome:
    """Run the folder's job until its processes have taken their steps."""
    with tempfile.TemporaryDirectory() as temporary:
        counts = Path(temporary, "counts")
        counts.mkdir()
        job = yaml.safe_load((folder / "job.yml").read_text())
        given = job.setdefault("environment_variables", {})
        given |= {"PYTHONPATH": str(COUNTER), "COUNT_STEPS": f"{counts}:{STEPS}:{PROCESSES}"}
        counted = folder / "counted.yml"
        counted.write_text(yaml.safe_dump(job, sort_keys=False))
        command = [TRAINYARD, "run", counted.name, "--without-gpus", "--python", python, "--quiet"]
        try:
            ran = subprocess.run(
                [*command, "--run-dir", f"{temporary}/run"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Outcome(_steps(counts), f"not done within {LIMIT_SECONDS} s")
        finally:
            counted.unlink()
        record = next(Path(temporary).glob("run/**/run.json"), None)
        if record is None:
            return Outcome((), f"not run: {' '.join(ran.stderr.split())[:300]}")
        (outcome,) = json.loads(record.read_text())["jobs"].values()
        reason = "" if outcome["status"] == "completed" else " ".join(str(outcome.get("reason")).split())
        return Outcome(_steps(counts), reason)


def _steps(counts: Path) -> tuple[int, ...]:
    return tuple(sorted(int(file.read_text()) for file in counts.iterdir()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_intermixed_args()
    with open(given.folder / "scripts.csv", newline="") as file:
        scripts = [row for row in csv.DictReader(file) if not given.names or row["folder"] in given.names]
    print("| repository | commit | script | result | adapted |\n|---|---|---|---|---|")
    passed = 0
    for row in scripts:
        outcome = run(given.folder / row["folder"], given.python)
        passed += outcome.counts
        cells = (row["repository"], row["commit"][:7], f"`{row['path']}`", str(outcome), row["adapted"])
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{passed} of {len(scripts)} scripts take their first {STEPS} steps, or all that they have.")


if __name__ == "__main__":
    main()
