"""How long `trainyard lint` takes as a whole process: for a pipeline (against Microsoft's client) and for many files.

    python benchmarks/lint_speed.py [--runs 15]

The pipeline alternates with azure-ai-ml's load and validate of the same file, so that a machine that slows down slows
both equally. Many files are copies of this repository's pipelines and components and of the projects that the linter's
tests plant mistakes into. Results go to benchmarks/results/lint_speed.json. Exit 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import compileall
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from results import save_results

ROOT = Path(__file__).parents[1]
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))
PIPELINE = "pipelines/ddp.yaml"
LOAD_AND_VALIDATE = f"""
import warnings
warnings.simplefilter("ignore")
from azure.ai.ml import load_job
assert load_job({PIPELINE!r})._validate(raise_error=False).passed
"""
LEAST_RATIO = 8.0
MOST_MEGABYTES = 300.0


@dataclass(frozen=True)
class Measured:
    """Seconds per process, and the peak memory of one."""

    name: str
    files: int
    median_seconds: float
    minimum_seconds: float
    maximum_seconds: float
    peak_megabytes: float
    bar_seconds: float

    @property
    def is_met(self) -> bool:
        """Whether time and memory are within their bars."""
        return self.median_seconds <= self.bar_seconds and self.peak_megabytes <= MOST_MEGABYTES


def run(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """Return seconds and peak megabytes of one process."""
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{said[-2000:]}")
    return seconds, usage.ru_maxrss / 1024


def measured(name: str, files: int, figures: Sequence[tuple[float, float]], bar_seconds: float) -> Measured:
    seconds = [each for each, _ in figures]
    peak = max(megabytes for _, megabytes in figures)
    return Measured(name, files, statistics.median(seconds), min(seconds), max(seconds), peak, bar_seconds)


def measure_pipeline(runs: int) -> tuple[Measured, Measured, float]:
    """Measure one pipeline with its components: ours, the client's, and the ratio."""
    own, peer = (TRAINYARD, "lint", PIPELINE), (sys.executable, "-c", LOAD_AND_VALIDATE)
    compileall.compile_dir(ROOT / "src", quiet=1)  # as an installed package is
    run(own, ROOT), run(peer, ROOT)  # warm file caches
    pairs = [(run(own, ROOT), run(peer, ROOT)) for _ in range(runs)]
    ratio = statistics.median(theirs[0] / ours[0] for ours, theirs in pairs)
    ours = measured("one pipeline", 1, [first for first, _ in pairs], 0.18)
    theirs = measured("azure-ai-ml load and validate", 1, [second for _, second in pairs], float("inf"))
    return ours, theirs, ratio


def projects() -> Iterator[Path]:
    """Return the projects to copy."""
    return itertools.cycle([*sorted((ROOT / "tests" / "lint" / "projects").iterdir()), ROOT])


def plant(folder: Path, count: int) -> int:
    """Copy projects into a folder until it has about `count` YAML files; return how many it has."""
    files = 0
    for number, project in enumerate(projects()):
        if files >= count:
            return files
        copy = folder / f"project_{number}"
        if project == ROOT:
            for name in ("components", "pipelines", "settings", "environments", "compute"):
                shutil.copytree(ROOT / name, copy / name)
            script = Path("src", "trainyard", "steps", "prepare_text_spark.py")  # Spark's component names it
            (copy / script).parent.mkdir(parents=True)
            shutil.copyfile(ROOT / script, copy / script)
        else:
            shutil.copytree(project, copy)
        files += sum(path.suffix in (".yaml", ".yml") for path in copy.rglob("*"))
    raise AssertionError("a cycle does not end")


def measure_many(count: int, bar_seconds: float, runs: int) -> Measured:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = plant(folder, count)
        command = (TRAINYARD, "lint", ".")
        run(command, folder)
        return measured(f"{count:,} files", files, [run(command, folder) for _ in range(runs)], bar_seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    ours, theirs, ratio = measure_pipeline(runs)
    many = [measure_many(500, 0.8, max(3, runs // 2)), measure_many(5000, 8.0, max(3, runs // 5))]
    for each in (ours, theirs, *many):
        bar = f"bar {each.bar_seconds:.2f} s" if each.bar_seconds != float("inf") else "the peer"
        print(
            f"{each.name:<30} {each.files:>5} files  median {each.median_seconds:6.3f} s "
            f"({each.minimum_seconds:.3f} to {each.maximum_seconds:.3f}; {bar}), {each.peak_megabytes:.0f} MB"
        )
    print(f"azure-ai-ml takes {ratio:.1f} times as long for the pipeline (bar {LEAST_RATIO:.0f})")
    figures = {"runs": runs, "ratio": ratio, "cases": [asdict(each) for each in (ours, *many)], "peer": asdict(theirs)}
    figures["peer"].pop("bar_seconds")
    save_results("lint_speed", figures)
    return int(ratio < LEAST_RATIO or not all(each.is_met for each in (ours, *many)))


if __name__ == "__main__":
    sys.exit(main())
