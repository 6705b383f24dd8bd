"""How long the commands take as whole processes, compared with a bare Python that imports what they need.

    python benchmarks/command_speed.py [--runs 15] [--only plan]

Each command alternates with its peer in one session, so that a machine that slows down slows both equally; the
figures to quote are the median and the ratio. Beside it stand the processor's seconds of the command, which other work
on the machine changes less. Results go to benchmarks/results/command_speed.json, unless only
some cases were run. Exit 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import compileall
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from results import save_results

ROOT = Path(__file__).parents[1]
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))


@dataclass(frozen=True)
class Case:
    """A command, the peer it alternates with, the bar its median must stay under, and what is run before, once."""

    name: str
    command: tuple[str, ...]
    peer: tuple[str, ...]
    bar_seconds: float | None
    setup: tuple[str, ...] = ()


CASES = (
    Case("trainyard --help", (TRAINYARD, "--help"), (sys.executable, "-c", "import click"), 0.15),
    Case(
        "trainyard render nd96",
        (TRAINYARD, "render", "nd96", "--out", "{folder}"),
        (sys.executable, "-c", "import click, jinja2, yaml, jsonschema_rs"),
        0.5,
    ),
    Case(
        "trainyard lint",
        (TRAINYARD, "lint", "pipelines/ddp.yaml"),
        (sys.executable, "-c", "import click, yaml, jsonschema_rs"),
        None,
    ),
    Case(
        "trainyard plan",
        (TRAINYARD, "plan", "pipelines/deepspeed.yaml"),
        (sys.executable, "-c", "import click, yaml, jsonschema_rs"),
        0.3,
    ),
    Case(
        "estimate --search",
        (TRAINYARD, "estimate", "--model", "llama-3.1-8b", "--nodes", "4", "--sequence-length", "4096", "--search"),
        (sys.executable, "-c", "import click"),
        3.0,
    ),
    Case(
        "trainyard plan, Phi",
        (TRAINYARD, "plan", "{folder}/pipelines/fsdp.yaml"),
        (sys.executable, "-c", "import transformers.models.phi.modeling_phi"),
        6.0,
        # Phi has no closed form: transformers counts it.
        setup=(
            TRAINYARD,
            "render",
            "t4",
            "--out",
            "{folder}",
            "--set",
            "pipelines.fsdp.settings=benchmarks/settings/phi.yaml",
        ),
    ),
)


@dataclass(frozen=True)
class Result:
    """Seconds per process."""

    name: str
    median_seconds: float
    minimum_seconds: float
    maximum_seconds: float
    cpu_median_seconds: float
    peer_median_seconds: float
    ratio_to_peer: float
    bar_seconds: float | None


def seconds_of(command: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Return the wall-clock time of a process, and the processor time of it and its children."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = [word.format(folder=folder) for word in command]
    subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True)
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(case: Case, runs: int, folder: Path) -> Result:
    compileall.compile_dir(ROOT / "src", quiet=1)  # as an installed package is
    if case.setup:
        seconds_of(case.setup, folder)
    seconds_of(case.command, folder), seconds_of(case.peer, folder)  # warm file caches
    pairs = [(seconds_of(case.command, folder), seconds_of(case.peer, folder)) for _ in range(runs)]
    own, peer = ([each[place][0] for each in pairs] for place in (0, 1))
    ratio = statistics.median(first / second for first, second in zip(own, peer, strict=True))
    cpu = statistics.median(first[1] for first, _ in pairs)
    return Result(
        case.name, statistics.median(own), min(own), max(own), cpu, statistics.median(peer), ratio, case.bar_seconds
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--only", default="", metavar="TEXT", help="The cases whose names contain it.")
    options = parser.parse_args()
    runs = options.runs
    folder = ROOT / ".trainyard" / "rendered" / "benchmark"
    results = [measure(case, runs, folder) for case in CASES if options.only in case.name]
    missed = False
    for result in results:
        bar = f"bar {result.bar_seconds:.2f}" if result.bar_seconds else "no bar yet"
        print(
            f"{result.name:<24} median {result.median_seconds:.3f} s "
            f"({result.minimum_seconds:.3f} to {result.maximum_seconds:.3f}; {bar}), "
            f"processor {result.cpu_median_seconds:.3f} s, "
            f"{result.ratio_to_peer:.2f} x its bare imports ({result.peer_median_seconds:.3f} s)"
        )
        missed |= result.bar_seconds is not None and result.median_seconds > result.bar_seconds
    if not options.only:
        save_results("command_speed", {"runs": runs, "cases": [asdict(result) for result in results]})
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
