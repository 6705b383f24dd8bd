"""Whole runs of a pipeline, disturbed at random moments and continued until they end: `make soak KILLS=200`.

Each disturbance is either SIGKILL or SIGTERM to one random rank of the training, or Ctrl-C to the runner. Afterwards
no process of the run may be left; `trainyard runs resume` continues it; and the weights that come out in the end must
be, bit for bit, those of a run that nobody disturbed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))
LONGEST_RUN_SECONDS = 300
SETTINGS = (
    "--set", "inputs.epochs=4",
    "--set", "inputs.minimum_accuracy=0",
    "--set", "jobs.train_ddp.inputs.checkpoint_every_steps=5",
)  # fmt: skip

pytestmark = pytest.mark.soak


def start(run_folder: Path, *words: str) -> subprocess.Popen[bytes]:
    log = (run_folder.parent / f"{run_folder.name}.log").open("ab")
    return subprocess.Popen([TRAINYARD, *words], cwd=ROOT, stdout=log, stderr=log, start_new_session=True)


def processes_of(run_folder: Path) -> Iterator[tuple[int, bytes]]:
    """Every living process that carries the run's id in its environment, with its command line."""
    record = run_folder / "run.json"
    if not record.exists():
        return
    mark = f"AZUREML_ROOT_RUN_ID={json.loads(record.read_text())['id']}\0".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if mark in (folder / "environ").read_bytes() and b"State:\tZ" not in (folder / "status").read_bytes():
                yield int(folder.name), (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it ended while we looked


def weights_digest(run_folder: Path) -> str:
    return hashlib.sha256((run_folder / "jobs/train_ddp/outputs/model/model.safetensors").read_bytes()).hexdigest()


def ranks_of(run_folder: Path) -> list[int]:
    """The processes of the training that are alive."""
    return sorted(pid for pid, command in processes_of(run_folder) if b"trainyard.steps.train_ddp" in command)


def wait_for_ranks(runner: subprocess.Popen[bytes], run_folder: Path) -> None:
    deadline = time.monotonic() + LONGEST_RUN_SECONDS
    while runner.poll() is None and not ranks_of(run_folder) and time.monotonic() < deadline:
        time.sleep(0.05)


def seconds_of_training(run_folder: Path) -> float:
    """How long the training of a run that nobody disturbs takes, with the start of its processes."""
    runner = start_run(run_folder)
    wait_for_ranks(runner, run_folder)
    began = time.monotonic()
    while ranks_of(run_folder):
        time.sleep(0.05)
    took = time.monotonic() - began
    assert runner.wait(timeout=LONGEST_RUN_SECONDS) == 0
    return took


def disturb(runner: subprocess.Popen[bytes], run_folder: Path, chance: random.Random, within_seconds: float) -> str:
    """Wait for the training, then for a random moment of it, and disturb; return what was done, '' if too late."""
    wait_for_ranks(runner, run_folder)
    time.sleep(chance.uniform(0.0, within_seconds))
    ranks = ranks_of(run_folder)
    if runner.poll() is not None or not ranks:
        return ""
    how = chance.choice(("SIGKILL", "SIGTERM", "Ctrl-C"))
    target = runner.pid if how == "Ctrl-C" else chance.choice(ranks)
    try:
        os.kill(target, signal.SIGINT if how == "Ctrl-C" else getattr(signal, how))
    except ProcessLookupError:
        return ""
    return how


def start_run(run_folder: Path) -> subprocess.Popen[bytes]:
    return start(
        run_folder, "run", "pipelines/ddp.yaml", "--profile", "local", "--no-cache", "--quiet",
        "--run-dir", str(run_folder), *SETTINGS,
    )  # fmt: skip


def run_until_completed(run_folder: Path, chance: random.Random, kills: int, within_seconds: float) -> list[str]:
    """One run, disturbed at most so many times and continued each time; return what was done to it."""
    done: list[str] = []
    runner = start_run(run_folder)
    while True:
        how = disturb(runner, run_folder, chance, within_seconds) if len(done) < kills else ""
        exit_code = runner.wait(timeout=LONGEST_RUN_SECONDS)
        assert not list(processes_of(run_folder)), f"processes were left after {how or 'the end'}"
        if exit_code == 0:
            return done
        assert how, f"the run failed undisturbed: {(run_folder.parent / f'{run_folder.name}.log').read_text()}"
        done.append(how)
        runner = start(run_folder, "runs", "resume", str(run_folder), "--quiet")


def test_disturbed_runs_end_with_the_bits_of_an_undisturbed_one(
    tmp_path: Path, disturbances_of_runs: int, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(f"{seed} runs")
    undisturbed = tmp_path / "undisturbed"
    within_seconds = seconds_of_training(undisturbed)
    expected = weights_digest(undisturbed)

    disturbances = 0
    runs = 0
    while disturbances < disturbances_of_runs:
        run_folder = tmp_path / f"disturbed-{runs}"
        kills = min(5, disturbances_of_runs - disturbances)
        done = run_until_completed(run_folder, chance, kills, within_seconds)
        disturbances += len(done)
        with capsys.disabled():
            print(
                f"\nruns: {disturbances} of {disturbances_of_runs}: {', '.join(done)} (SEED={seed})", end="", flush=True
            )
        assert weights_digest(run_folder) == expected, f"{run_folder.name} has other weights (SEED={seed})"
        runs += 1
