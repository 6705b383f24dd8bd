"""What an epoch's order costs before its first batch, and in memory: ours, and torch.randperm as in DataLoader.

    python benchmarks/sample_order.py [--samples 1000000000]

Each in its own process, so that peak memory can be told apart. torch.randperm needs 8 bytes per sample. Results go to
benchmarks/results/sample_order.json. Exit 1 when ten billion samples are not ready in 1 ms.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from results import save_results

BAR_READY_SECONDS = 0.001
TEN_BILLION = 10**10
BATCH, IDS_TIMED = 32, 1 << 20


def peak_mib() -> float:
    """Return the peak memory of this process, as Linux counts it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_ours(samples: int) -> dict[str, float]:
    from trainyard.steps.data.sample_order import SampleOrder

    SampleOrder(samples, seed=0).sample_ids(0, BATCH)  # as in any epoch but the very first: numpy has been used
    before = peak_mib()
    ready = []
    for epoch in range(100):
        started = time.perf_counter()
        order = SampleOrder(samples, seed=0, epoch=epoch)
        order.sample_ids(0, BATCH)
        ready.append(time.perf_counter() - started)
    per_id = []
    for first in range(0, min(samples, IDS_TIMED), 1 << 14):
        stop = min(samples, first + (1 << 14))
        started = time.perf_counter()
        order.sample_ids(first, stop)
        per_id.append((time.perf_counter() - started) / (stop - first))
    return {
        "first_batch_seconds": statistics.median(ready),
        "nanoseconds_per_id_after": statistics.median(per_id) * 1e9,
        "memory_mib": peak_mib() - before,
    }


def measure_randperm(samples: int) -> dict[str, float]:
    import torch

    torch.randperm(BATCH)
    before = peak_mib()
    started = time.perf_counter()
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(0))
    order[:BATCH].tolist()
    return {"first_batch_seconds": time.perf_counter() - started, "memory_mib": peak_mib() - before}


MEASURES: dict[str, Callable[[int], dict[str, float]]] = {"trainyard": measure_ours, "torch.randperm": measure_randperm}


def in_own_process(what: str, samples: int) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__)), "--samples", str(samples), "--only", what]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10**9, help="torch.randperm takes 8 bytes for each")
    parser.add_argument("--only", choices=MEASURES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(MEASURES[arguments.only](arguments.samples)))
        return 0
    cases = [("trainyard", arguments.samples), ("torch.randperm", arguments.samples), ("trainyard", TEN_BILLION)]
    results = [{"order": what, "samples": samples, **in_own_process(what, samples)} for what, samples in cases]
    for result in results:
        after = (
            f", then {result['nanoseconds_per_id_after']:.1f} ns an id" if "nanoseconds_per_id_after" in result else ""
        )
        print(
            f"{result['order']:<15} {result['samples']:>14,} samples: first batch after "
            f"{result['first_batch_seconds'] * 1e3:12.3f} ms{after}; memory {result['memory_mib']:9.1f} MiB"
        )
    is_met = results[-1]["first_batch_seconds"] <= BAR_READY_SECONDS
    print(f"ten billion samples ready in 1 ms: {'met' if is_met else 'MISSED'}")
    save_results("sample_order", {"bar_ready_seconds": BAR_READY_SECONDS, "cases": results})
    return int(not is_met)


if __name__ == "__main__":
    sys.exit(main())
