"""What is for GPUs runs from beginning to end on a CPU, as far as one can; its figures are not checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rank_processes import clean_environment, without_greetings

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_benchmark_runs_with_a_tiny_model() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu.py", "--tiny"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert result.returncode == 0, result.stderr
    lines = without_greetings(result.stdout).splitlines()
    assert lines[0] == "tiny Llama, 2 x 16 tokens a step:"
    assert [line.split()[0] for line in lines[1:3]] == ["bare", "trainyard"]
    assert lines[-2] == "no NVIDIA GPU: Llama 1.1B not measured; GPT-2 124M not measured; GPT-2 350M not measured"


@pytest.mark.slow
def test_the_check_kills_a_training_and_holds_it_against_one_that_ended_by_itself() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu_check.py", "--without-gpu", "--only", "killed and resumed"],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 of 3 as expected, 0 failed" in result.stdout


def test_the_check_says_that_there_is_no_gpu() -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu_check.py"],
        env={**clean_environment(), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (result.returncode, result.stderr) == (2, "no GPU that torch can use: nothing can be checked here\n")
