"""Samples of what real processes use while they run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trainyard.rehearse.machine_use import machine_use_sampled

MIB = 2**20
# It goes on using its memory, of which the system would else take back what is idle.
BUSY = """
held = bytearray(64 << 20)
print(flush=True)
while True:
    for page in range(0, len(held), 4096):
        held[page] = 1
"""


@contextmanager
def running(program: str) -> Iterator[int]:
    """Run a program; go on when it has printed a line, or has ended."""
    with subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def lines_of(job_folder: Path) -> list[dict[str, float]]:
    file = job_folder / "system_logs" / "machine_use.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def job_folder(tmp_path: Path) -> Path:
    (tmp_path / "system_logs").mkdir()
    return tmp_path


def test_processor_time_and_memory_of_a_session_are_sampled(job_folder: Path) -> None:
    idle_program = "import time; print(flush=True); time.sleep(600)"
    with (
        running(BUSY) as busy,
        running(idle_program) as idle,
        machine_use_sampled(job_folder, 2, []) as start,
    ):
        start([busy, idle])
        while len(lines_of(job_folder)) < 4:
            time.sleep(0.05)
    header, *samples = lines_of(job_folder)
    assert header["format"] == "trainyard.machine_use/1"
    assert header["attempt"] == 2
    # The first sample has the start of both processes, which came before it.
    busy_of = [sample["processors_busy"] for sample in samples]
    assert sum(busy_of) > 0
    assert all(share < 1.5 for share in busy_of[1:]), "one process computes, the other waits"
    assert all(64 * MIB < sample["memory_bytes"] < 256 * MIB for sample in samples)
    assert "gpus" not in samples[0]


def test_a_job_that_ends_at_once_has_no_samples(job_folder: Path) -> None:
    with running("pass") as process, machine_use_sampled(job_folder, 1, []) as start:
        start([process])
    assert lines_of(job_folder) == []


def test_gpus_are_as_nvidia_smi_prints_them(job_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = job_folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    lines = ("0, GPU-a, 50, 1024", "1, GPU-b, [N/A], 3", "2, GPU-c, 9, 9")
    program.write_text("#!/bin/sh\n" + "".join(f'echo "{line}"\n' for line in lines))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    with running(BUSY) as busy, machine_use_sampled(job_folder, 1, ["0", "1"]) as start:
        start([busy])
        while len(lines_of(job_folder)) < 2:
            time.sleep(0.05)
    assert lines_of(job_folder)[1]["gpus"] == {"0": {"busy": 0.5, "memory_bytes": 1024 * MIB}}
