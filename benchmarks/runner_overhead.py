"""What `trainyard run` itself costs: an idle job, a chain and a wide graph of them, what is reused, and in memory.

    python benchmarks/runner_overhead.py [--repeat 3] [--wide 500]

Every figure is of whole processes in a folder of its own; the median counts. What a job costs is the difference between
runs of 20 jobs and of 1, without the start of a shell, which is measured beside it and which the ratio is to. In the
wide graph each job writes 2 MB of logs; the trials of a sweep log their metric as MLflow's store of files has it.
Beside them stand the processor time of a reused run and the load of the machine before, since seconds say less on a
machine that has other work. Results go to benchmarks/results/runner_overhead.json. Exit 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import save_results

ROOT = Path(__file__).parents[1]
IDLE_JOBS = 20
LOG_BYTES = 2_000_000
BARS = {
    "seconds of one idle job": 0.3,
    "seconds per idle job": 0.10,
    "seconds of a chain of 20": 0.6,
    "seconds of a wide graph": 60.0,
    "seconds of a reused run": 0.3,
    "peak memory of the runner, MB": 150.0,
    "peak memory with 1,000 trials, MB": 150.0,
}


def write_pipeline(folder: Path, jobs: int, command: str, *, is_chain: bool = False) -> None:
    """Write a pipeline of jobs that do not depend on each other, or each on the one before."""
    component: dict[str, Any] = {"type": "command", "command": command, "environment": "azureml:some_environment:1"}
    component |= {"outputs": {"out": {"type": "uri_folder"}}}
    document: dict[str, Any] = {
        "type": "pipeline",
        "settings": {"default_compute": "azureml:cpu"},
        "jobs": {f"job_{number}": {"type": "command", "component": component} for number in range(jobs)},
    }
    if is_chain:
        component["inputs"] = {"before": {"type": "uri_folder", "optional": True}}
        for number in range(1, jobs):
            binding = f"${{{{parent.jobs.job_{number - 1}.outputs.out}}}}"
            document["jobs"][f"job_{number}"]["inputs"] = {"before": binding}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pipeline.yml").write_text(json.dumps(document))


def write_sweep(folder: Path) -> None:
    """Write a sweep of 1,000 trials that only log their metric."""
    logs = 'echo "0 ${{search_space.x}} 0" >> ${MLFLOW_TRACKING_URI#file://}/$MLFLOW_EXPERIMENT_ID/$MLFLOW_RUN_ID'
    document = {
        "type": "sweep",
        "compute": "azureml:cpu",
        "trial": {"command": f"{logs}/metrics/loss", "environment": "azureml:some_environment:1"},
        "sampling_algorithm": "grid",
        "search_space": {"x": {"type": "choice", "values": list(range(1000))}},
        "objective": {"goal": "minimize", "primary_metric": "loss"},
        "limits": {"max_total_trials": 1000, "max_concurrent_trials": 4},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pipeline.yml").write_text(json.dumps(document))


def run(folder: Path, *options: str) -> tuple[float, float, float]:
    """Run the folder's pipeline as a whole process.

    Return its seconds, the peak of its memory in MB, and the processor seconds of the runner and the jobs.
    """
    command = [sys.executable, "-m", "trainyard", "run", "pipeline.yml", "--quiet", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"the run in {folder} failed")
    return seconds, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime


def shell_seconds() -> float:
    """The seconds that one shell takes to start and end: the median of twenty."""
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        subprocess.run(["bash", "-c", "true"], check=True)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def measure(folder: Path, repeat: int, wide_jobs: int) -> tuple[dict[str, float], float, float]:
    """Return the figures that have bars, the seconds of a shell, and the processor seconds of a reused run."""
    twenty, one, chain, wide = (folder / name for name in ("twenty", "one", "chain", "wide"))
    write_pipeline(twenty, IDLE_JOBS, "true")
    write_pipeline(one, 1, "true")
    write_pipeline(chain, IDLE_JOBS, "true", is_chain=True)
    write_pipeline(wide, wide_jobs, f"yes 'a line of a log' | head -c {LOG_BYTES}")
    run(twenty)  # fills the caches, and is what the last runs reuse
    shell = shell_seconds()
    pairs = [(run(twenty, "--no-cache")[0], run(one, "--no-cache")[0]) for _ in range(repeat)]
    each = statistics.median((many - single) / (IDLE_JOBS - 1) - shell for many, single in pairs)
    single = statistics.median(seconds for _, seconds in pairs)
    chained = statistics.median(run(chain, "--no-cache")[0] for _ in range(repeat))
    reused = [run(twenty) for _ in range(repeat)]
    reused_seconds, reused_processor = (statistics.median(one_run[index] for one_run in reused) for index in (0, 2))
    wide_seconds, memory, _ = run(wide)
    write_sweep(folder / "sweep")
    _, with_trials, _ = run(folder / "sweep")
    figures = single, each, chained, wide_seconds, reused_seconds, memory, with_trials
    return dict(zip(BARS, figures, strict=True)), shell, reused_processor


def main() -> int:
    """Measure, print and save; return 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--wide", type=int, default=500)
    arguments = parser.parse_args()
    compileall.compile_dir(ROOT / "src", quiet=1)  # as an installed package is
    folder = Path(tempfile.mkdtemp(prefix="runner-overhead-"))
    try:
        load = os.getloadavg()[0]
        figures, shell, reused_processor = measure(folder, arguments.repeat, arguments.wide)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, figure in figures.items():
        verdict = "" if figure <= BARS[name] else "   MISSED"
        print(f"{name:<34} {figure:8.3f}   bar {BARS[name]:g}{verdict}")
    ratio = figures["seconds per idle job"] / shell
    print(f"{'start of a shell, seconds':<34} {shell:8.3f}   an idle job costs {ratio:.1f} times that")
    print(f"{'processor s of a reused run':<34} {reused_processor:8.3f}   load of the machine before: {load:.1f}")
    save_results(
        "runner_overhead",
        {
            "wide_jobs": arguments.wide,
            "figures": figures,
            "bars": BARS,
            "shell_seconds": shell,
            "ratio_to_shell": ratio,
            "reused_processor_seconds": reused_processor,
            "load_before": load,
        },
    )
    return int(any(figure > BARS[name] for name, figure in figures.items()))


if __name__ == "__main__":
    raise SystemExit(main())
