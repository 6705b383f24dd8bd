"""Batches per second: ours against DataLoader + DistributedSampler and against mosaicml-streaming, two ranks.

    python benchmarks/batches.py [--rounds 20] [--seconds 0.5]

Each loader reads the same samples in its native format from this machine's disk: Trainyard its shards, DataLoader
numpy's memory maps, mosaicml-streaming its MDS shards. First every loader finds its best worker count. Then all of them
stay ready, and iterate in turn, half a second each, round after round, so that a machine that slows down slows all
equally. A figure is the sum of both ranks' batches/s; a ratio is the median of the rounds' ratios. The first epoch is
not timed; its samples and their sum must be the same for every loader.

Bars: 3 x as many batches/s as either peer for rows of tokens, 2 x for images. "DataLoader, batched" is for comparison:
a dataset that gathers a whole batch at once (`__getitems__`), which few do. Results go to
benchmarks/results/batches.json. Exit 1 when a bar is missed.

mosaicml-streaming cannot share Trainyard's environment; the benchmark creates one for it under .trainyard/, at first
use.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from results import save_results

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".trainyard" / "benchmarks"
RANK_PROGRAM = Path(__file__).with_name("batch_loaders.py")
REQUIREMENTS = Path(__file__).with_name("streaming_requirements.txt")
RANKS = 2


@dataclass(frozen=True)
class Case:
    """One kind of dataset: its micro-batch size, and the bar: how many times faster than each peer."""

    workload: str
    batch: int
    bar: float


CASES = (
    Case("tokens-1024", batch=32, bar=3.0),
    Case("tokens-128", batch=64, bar=3.0),
    Case("images-3x32x32", batch=64, bar=2.0),
)


@dataclass
class Loader:
    """A loader, the worker counts to try, and what was measured."""

    name: str
    label: str
    worker_counts: tuple[int, ...]
    python: str
    has_bar: bool
    tried: dict[int, float] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)

    def best_workers(self) -> int:
        """The fastest of the worker counts that were tried."""
        return max(self.tried, key=lambda workers: self.tried[workers])


def streaming_python() -> str:
    """Return the Python of mosaicml-streaming's environment, which falls back on the packages of this one."""
    environment = FOLDER / "streaming-environment"
    python, installed = environment / "bin" / "python", environment / REQUIREMENTS.name
    if not installed.is_file() or installed.read_text() != REQUIREMENTS.read_text():
        print(f"making {environment.relative_to(ROOT)} for mosaicml-streaming", flush=True)
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
        install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "-r", str(REQUIREMENTS)]
        subprocess.run([sys.executable, *install], check=True)
        own = subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        Path(own, "beneath.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        installed.write_text(REQUIREMENTS.read_text())
    return str(python)


def write_data(case: Case, loaders: list[Loader]) -> Path:
    folder = FOLDER / "batches" / case.workload
    if not (folder / "complete").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        for loader in loaders:
            if loader.name != "dataloader_batched":
                command = [
                    loader.python,
                    str(RANK_PROGRAM),
                    "write",
                    case.workload,
                    str(folder),
                    "--loader",
                    loader.name,
                ]
                subprocess.run(command, check=True)
        (folder / "complete").touch()
    return folder


def rank_variables(rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


class Ranks:
    """Start the ranks of one loader, ready to iterate after their first epoch; they end with the context."""

    def __init__(self, case: Case, loader: Loader, folder: Path, workers: int) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        command = [loader.python, str(RANK_PROGRAM), loader.name, case.workload, str(folder)]
        command += ["--batch", str(case.batch), "--workers", str(workers)]
        self._processes = [
            subprocess.Popen(
                command,
                env={**os.environ, **rank_variables(rank, port)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]

    def first_epoch(self) -> tuple[int, int]:
        """Return the samples of the untimed epoch and their sum, over all ranks."""
        epochs = [json.loads(line_of(process)) for process in self._processes]
        self._rate = self._take(100)
        return sum(epoch["samples"] for epoch in epochs), sum(epoch["sum"] for epoch in epochs)

    def batches_per_second(self, seconds: float) -> float:
        """Return batches/s of all ranks together, iterating at the same time for about this long."""
        self._rate = self._take(max(20, int(self._rate / RANKS * seconds)))
        return self._rate

    def _take(self, batches: int) -> float:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{batches}\n")
            process.stdin.flush()
        return sum(float(line_of(process)) for process in self._processes)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def line_of(rank: subprocess.Popen[str]) -> str:
    assert rank.stdout is not None
    assert rank.stderr is not None
    line = rank.stdout.readline()
    if not line:
        raise SystemExit(f"a rank ended early: {rank.args}\n{rank.stderr.read()}")
    return line


def compare(case: Case, loaders: list[Loader], rounds: int, seconds: float) -> bool:
    folder = write_data(case, loaders)
    sums = set()
    for loader in loaders:
        for workers in loader.worker_counts:
            with Ranks(case, loader, folder, workers) as ranks:
                sums.add(ranks.first_epoch())
                loader.tried[workers] = max(ranks.batches_per_second(seconds) for _ in range(3))
    if len(sums) != 1:
        raise SystemExit(f"{case.workload}: the loaders did not give the same samples: {sums}")
    with ExitStack() as ready:
        ranks_of = [ready.enter_context(Ranks(case, loader, folder, loader.best_workers())) for loader in loaders]
        for ranks in ranks_of:
            ranks.first_epoch()
        for _ in range(rounds):
            for loader, ranks in zip(loaders, ranks_of, strict=True):
                loader.rates.append(ranks.batches_per_second(seconds))
    return report(case, loaders)


def ratio_to(peer: Loader, ours: Loader) -> float:
    return statistics.median(own / other for own, other in zip(ours.rates, peer.rates, strict=True))


def report(case: Case, loaders: list[Loader]) -> bool:
    """Print a table; return whether the bars are met."""
    print(f"\n{case.workload}, micro-batch {case.batch}, {RANKS} ranks")
    is_met = True
    for loader in loaders:
        workers = f", {loader.best_workers()} workers" if len(loader.worker_counts) > 1 else ""
        ratio, verdict = ratio_to(loader, loaders[0]), ""
        if loader.has_bar:
            is_met &= ratio >= case.bar
            verdict = f"   bar {case.bar:g} x: {'met' if ratio >= case.bar else 'MISSED'}"
        rate = statistics.median(loader.rates)
        print(f"  {loader.label + workers:<58}{rate:10.0f} batches/s   ours is {ratio:6.2f} x{verdict}", flush=True)
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long a loader iterates in each round")
    parser.add_argument("--only", choices=[case.workload for case in CASES])
    arguments = parser.parse_args()
    own, streaming = sys.executable, streaming_python()
    results, are_met = [], True
    for case in CASES:
        if arguments.only not in (None, case.workload):
            continue
        loaders = [
            Loader("trainyard", "Trainyard", (0,), own, False),
            Loader("dataloader", "DataLoader + DistributedSampler", (0, 1, 2, 4), own, True),
            Loader("dataloader_batched", "DataLoader, batched + DistributedSampler", (0, 1, 2), own, False),
            Loader("streaming", "mosaicml-streaming", (0, 1, 2), streaming, True),
        ]
        are_met &= compare(case, loaders, arguments.rounds, arguments.seconds)
        measured = [
            {
                "loader": loader.label,
                "workers": loader.best_workers(),
                "batches_per_second": statistics.median(loader.rates),
                "batches_per_second_by_workers_tried": loader.tried,
                "trainyard_is_times_as_fast": ratio_to(loader, loaders[0]),
            }
            for loader in loaders
        ]
        results.append({"workload": case.workload, "batch": case.batch, "bar": case.bar, "loaders": measured})
    if arguments.only is None:
        save_results("batches", {"ranks": RANKS, "rounds": arguments.rounds, "cases": results})
    return int(not are_met)


if __name__ == "__main__":
    sys.exit(main())
