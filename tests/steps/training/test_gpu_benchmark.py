"""What is for GPUs runs from beginning to end on a CPU, as far as one can; its figures are not checked."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from rank_processes import clean_environment, free_port, without_greetings

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
@pytest.mark.usefixtures("jobs_are_forked")
def test_trainings_are_compared_with_their_predictions() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "measured_trainings.py"), "--tiny", "--only", "gpt2-large"]
    result = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stderr
    assert "gpt2-large, 2 x 32, fp32, recomputed: samples_per_second " in result.stdout


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/gpu_check.py, in this process."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gpu_check")


@pytest.mark.slow
@pytest.mark.usefixtures("jobs_are_forked")
def test_the_check_kills_a_training_and_compares_it_with_one_that_ended_by_itself(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--without-gpu", "--only", "killed and resumed"])
    # A step takes a CPU long: few steps, of short rows of a short text.
    monkeypatch.setattr(check, "STEPS", 5)
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text("The quick brown fox jumps over the lazy dog. " * 8)
    text = ("prepare_text", "--source", str(tmp_path), "--vocabulary-size", "300", "--sequence-length", "32")
    monkeypatch.setitem(check.PREPARED, "text", text)
    exit_code = check.main()
    printed = capsys.readouterr().out
    assert exit_code == 0, printed
    assert "3 of 3 as expected, 0 failed" in printed


def test_the_check_ends_ranks_that_torchrun_has_started(check: ModuleType, tmp_path: Path) -> None:
    """Each rank has a session of its own."""
    rank = tmp_path / "rank.py"
    rank.write_text(f"open({str(tmp_path / 'begun')!r}, 'w')\nprint('begun', flush=True)\nimport time\ntime.sleep(200)")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", f"--master-port={free_port()}")
    with check._processes([*launcher, str(rank)], check._environment()) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
    for _ in range(600):  # a killed process takes a moment to end
        if not is_running(rank):
            break
        time.sleep(0.1)
    assert not is_running(rank)


def is_running(program: Path) -> bool:
    return any(str(program).encode() in command_of(process) for process in Path("/proc").glob("[0-9]*"))


def command_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def test_the_check_reports_that_there_is_no_gpu(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    assert (check.main(), capsys.readouterr().err) == (2, "no GPU that torch can use: nothing can be checked here\n")
