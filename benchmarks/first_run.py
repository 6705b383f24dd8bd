"""A newcomer's first run: how long the whole pipeline takes here, how accurate it is, how fast the second run is.

    python benchmarks/first_run.py

Runs pipelines/ddp.yaml for profile `local` in an empty runs folder, once with nothing to reuse and once with
everything. Then starts a new project from a wheel of this repository, installed where no checkout is near, and runs its
pipeline. Bars: accuracy >= 0.97, first run <= 180 s, second run <= 15 s, new project <= 90 s after installation. Exit 1
when one is missed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

from results import save_results

ROOT = Path(__file__).parents[1]
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))
BARS = {"test_accuracy": 0.97, "first_run_seconds": 180.0, "second_run_seconds": 15.0, "new_project_seconds": 90.0}


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


def run_new_project(folder: Path) -> float:
    """Return the seconds from `trainyard init` to a trained model, with an installed wheel of this repository."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("trainyard_azureml-*.whl")
    environment = folder / "venv"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    # What Trainyard depends on is that of this environment; .pth files there are not followed, so its Trainyard is not.
    (site_packages,) = (environment / "lib").glob("python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    started = time.perf_counter()
    trainyard = str(environment / "bin" / "trainyard")
    subprocess.run([trainyard, "init", "demo"], cwd=folder, check=True, capture_output=True)
    run = [trainyard, "run", "pipelines/train.yaml", "--quiet"]
    subprocess.run(run, cwd=folder / "demo", check=True, capture_output=True)
    return time.perf_counter() - started


def main() -> int:
    first_seconds, folder = run_pipeline("--no-cache")
    second_seconds, _ = run_pipeline()
    evaluation = json.loads(next(folder.glob("jobs/evaluate/outputs/*/evaluation.json")).read_text())
    figures = {
        "test_accuracy": evaluation["accuracy"],
        "first_run_seconds": first_seconds,
        "second_run_seconds": second_seconds,
    }
    with tempfile.TemporaryDirectory() as folder:
        figures["new_project_seconds"] = run_new_project(Path(folder))
    met = {
        name: figure >= BARS[name] if name == "test_accuracy" else figure <= BARS[name]
        for name, figure in figures.items()
    }
    for name, figure in figures.items():
        print(f"{name:<20} {figure:8.3f}   bar {BARS[name]:g}   {'met' if met[name] else 'MISSED'}")
    save_results("first_run", {"figures": figures, "bars": BARS})
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
