"""How fast text becomes tokens, compared with `tokenizers` alone, and whether ten times the text takes more memory.

    python benchmarks/prepare_text.py [--runs 3] [--workers N] [--copies 10]

The text is the source of Python's standard library (about 13 MB), `--copies` times as files, and the same as a single
file. The step is timed as a whole process: start, reading, splitting, tokenising, packing, writing. Its peers hold the
text in memory and only run `encode_batch` (and `encode_batch_fast`, which keeps no offsets and is what the step
uses) on as many threads as the step has processes; they alternate with it. Results go to
benchmarks/results/prepare_text.json. Exit 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from results import save_results

LEAST_SHARE_OF_PEER = 0.9
MOST_MEMORY_GROWTH = 1.1
"""Ten times the text must not need a tenth more memory."""

PEERS = ("encode_batch", "encode_batch_fast")
_PEER_BATCH_BYTES = 4_000_000


def write_library(folder: Path, copies: int) -> int:
    """Write the standard library's source as .txt files, `copies` times; return the bytes."""
    library = Path(sysconfig.get_path("stdlib"))
    total_bytes = 0
    for file in sorted(library.rglob("*.py")):
        data = file.read_bytes()
        relative = file.relative_to(library)
        if {"site-packages", "test"} & set(relative.parts) or not is_utf8(data):
            continue
        for copy in range(copies):
            target = folder / f"{copy}" / relative.with_suffix(".txt")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            total_bytes += len(data)
    return total_bytes


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def write_joined(source: Path, folder: Path) -> None:
    """Write all files of a folder as one."""
    folder.mkdir()
    with (folder / "all.txt").open("wb") as joined:
        for file in sorted(source.rglob("*.txt")):
            joined.write(file.read_bytes())


def run_step(source: Path, prepared: Path, workers: int, *flags: str) -> tuple[float, float]:
    """Return the seconds of a command, and the sum of its processes' peak memory in MiB."""
    command = [sys.executable, "-m", "trainyard.steps.prepare_text", "--source", str(source)]
    command += ["--prepared", str(prepared), "--workers", str(workers), *flags]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    started = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    peaks: dict[int, float] = {}
    while process.poll() is None:
        for pid in family(process.pid):
            peaks[pid] = peak_mebibytes(pid) or peaks.get(pid, 0.0)
        time.sleep(0.05)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds, sum(peaks.values())


def family(pid: int) -> Iterator[int]:
    """Return a process and its descendants."""
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))
    except OSError:
        return


def peak_mebibytes(pid: int) -> float:
    """Return the peak memory of a process so far; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


_PEER = """
import json, sys, time
from pathlib import Path
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[2])
batches, size = [[]], 0
for file in sorted(Path(sys.argv[1]).rglob("*.txt")):
    if size > int(sys.argv[3]):
        batches.append([]); size = 0
    batches[-1].append(file.read_bytes().decode()); size += file.stat().st_size
encode = getattr(tokenizer, sys.argv[4])
started = time.perf_counter()
for batch in batches:
    encode(batch, add_special_tokens=False)
print(time.perf_counter() - started)
"""


def run_peer(source: Path, tokenizer: Path, method: str, threads: int) -> float:
    """Return the seconds of encoding alone, with the text already in memory."""
    environment = {**os.environ, "RAYON_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, "-c", _PEER, str(source), str(tokenizer), str(_PEER_BATCH_BYTES), method]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--copies", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(Path(scratch), options.runs, options.workers, options.copies)
    save_results("prepare_text", figures)
    ratio, growth = figures["ratio_to_encode_batch"], max(figures["memory_growth"].values())
    return int(ratio < LEAST_SHARE_OF_PEER or growth > MOST_MEMORY_GROWTH)


def measure(scratch: Path, runs: int, workers: int, copies: int) -> dict[str, object]:
    small_bytes = write_library(scratch / "once", 1)
    large_bytes = write_library(scratch / "often", copies)
    for name in ("once", "often"):
        write_joined(scratch / name, scratch / f"{name}-joined")
    run_step(scratch / "once", scratch / "vocabulary", workers)
    given = ("--tokenizer", str(scratch / "vocabulary"))
    tokenizer = scratch / "vocabulary" / "tokenizer.json"

    seconds = []
    for _ in range(runs):
        own, _ = run_step(scratch / "often", scratch / "prepared", workers, *given)
        peers = [run_peer(scratch / "often", tokenizer, method, workers) for method in PEERS]
        seconds.append((own, *peers))
    own, plain, fast = (statistics.median(column) for column in zip(*seconds, strict=True))
    ratio = statistics.median(peer / step for step, peer, _ in seconds)
    fast_ratio = statistics.median(peer / step for step, _, peer in seconds)
    megabytes = large_bytes / 1e6
    print(f"{megabytes:.0f} MB of text, {workers} processes or threads; median of {runs} alternating runs")
    print(f"prepare_text       {megabytes / own:6.2f} MB/s, whole process")
    print(f"encode_batch       {megabytes / plain:6.2f} MB/s; ratio {ratio:.2f} (bar {LEAST_SHARE_OF_PEER})")
    print(f"encode_batch_fast  {megabytes / fast:6.2f} MB/s; ratio {fast_ratio:.2f}")

    memory, growth = {}, {}
    no_split = ("--validation-fraction", "0", "--test-fraction", "0")
    for shape in ("", "-joined"):
        sources = [scratch / f"{size}{shape}" for size in ("once", "often")]
        peaks = [run_step(source, scratch / "prepared", workers, *given, *no_split)[1] for source in sources]
        name = "one file" if shape else "many files"
        memory[name], growth[name] = peaks, peaks[1] / peaks[0]
        print(
            f"{name}: peak memory of all processes {peaks[0]:.0f} MiB for {small_bytes / 1e6:.0f} MB of text, "
            f"{peaks[1]:.0f} MiB for {megabytes:.0f} MB: {growth[name]:.2f} x (bar {MOST_MEMORY_GROWTH})"
        )
    return {
        "runs": runs,
        "workers": workers,
        "text_bytes": large_bytes,
        "megabytes_per_second": {
            "prepare_text": megabytes / own,
            "encode_batch": megabytes / plain,
            "encode_batch_fast": megabytes / fast,
        },
        "ratio_to_encode_batch": ratio,
        "ratio_to_encode_batch_fast": fast_ratio,
        "bar_ratio": LEAST_SHARE_OF_PEER,
        "peak_memory_mebibytes": {name: {"1x": one, f"{copies}x": more} for name, (one, more) in memory.items()},
        "memory_growth": growth,
        "bar_memory_growth": MOST_MEMORY_GROWTH,
    }


if __name__ == "__main__":
    sys.exit(main())
