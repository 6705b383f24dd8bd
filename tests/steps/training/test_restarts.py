"""Restarts inside a job: a worker that dies is replaced, and the training ends with the bits of an undisturbed one."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from forked_ranks import forked_ranks
from rank_processes import SOURCE, TESTS, Ranks, start_ranks, training_arguments

from trainyard.steps import train_ddp
from trainyard.steps.training.checkpoints.checkpoint_to_resume import checkpoint_folders, step_folder
from trainyard.steps.training.checkpoints.commit import read_commit

FORKED_WORKERS = TESTS / "forked_workers"
LIMIT_SECONDS = 240
LAST_STEP = 42


def worker_of(process_id: int) -> int:
    """The process that a rank's watcher has started, once there is one."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children")
    deadline = time.monotonic() + LIMIT_SECONDS
    while not children.read_text():
        assert time.monotonic() < deadline, "the watcher starts no worker"
        time.sleep(0.02)
    return int(children.read_text().split()[0])


def is_running(process_id: int) -> bool:
    return Path(f"/proc/{process_id}").exists()


def wait_for_checkpoint(ranks: Ranks, out: Path, step: int) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (step_folder(out / "checkpoints", step) / "commit.json").exists():
        assert all(process.poll() is None for process in ranks.processes), "ended early"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def flags(digits: Path, out: Path, restarts: int) -> list[object]:
    saving = ("--checkpoint-every-steps", 5, "--keep-checkpoints", 99)
    more = ("--epochs", 2, "--micro-batch-size", 16, *saving, "--restarts", restarts)
    return training_arguments(digits, out, "tiny_task:Slow", *more)


def start(digits: Path, out: Path, python_of_workers: Path, restarts: int, ranks: int = 2) -> Ranks:
    """Start watchers, whose workers run with a Python that spares them their imports."""
    environment = {"FORKED_PYTHON": str(python_of_workers), "PYTHONPATH": f"{FORKED_WORKERS}:{SOURCE}:{TESTS}"}
    return start_ranks("train_ddp", flags(digits, out, restarts), ranks, environment=environment)


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_every_bit_is_as_undisturbed(
    digits: Path, tmp_path: Path, forked_python: Path
) -> None:
    """Rank 1's worker is killed, then rank 0's, in whose place the store survives. No process is left."""
    exit_codes, outputs = forked_ranks().run("train_ddp", flags(digits, tmp_path / "whole", 0), 2)
    assert exit_codes == [0, 0], outputs
    ranks, workers = start(digits, tmp_path / "cut", forked_python, 2), []
    try:
        for rank, step in ((1, 5), (0, 20)):
            wait_for_checkpoint(ranks, tmp_path / "cut", step)
            workers += [worker_of(process.pid) for process in ranks.processes]
            os.kill(worker_of(ranks.processes[rank].pid), signal.SIGKILL)
    finally:
        exit_codes = ranks.wait(LIMIT_SECONDS)
    assert exit_codes == [0, 0], ranks.outputs
    node = f"node 0 ({socket.gethostname()})"
    assert f"restart 1 of 2: rank 1 on {node} was killed by SIGKILL; all ranks start again" in ranks.outputs[0]
    again = f"(failure 2 on {node}: leave that machine out if it goes on)"
    assert f"restart 2 of 2: rank 0 on {node} was killed by SIGKILL {again}; all ranks" in ranks.outputs[0]
    commits = [read_commit(step_folder(tmp_path / name / "checkpoints", LAST_STEP)) for name in ("whole", "cut")]
    assert commits[0] == commits[1]
    models = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert models[0] == models[1]
    assert not any(is_running(worker) for worker in workers)


@pytest.mark.slow
def test_a_stop_reaches_the_worker_and_used_up_restarts_end_the_job(
    digits: Path, tmp_path: Path, forked_python: Path
) -> None:
    ranks = start(digits, tmp_path, forked_python, 1, ranks=1)
    wait_for_checkpoint(ranks, tmp_path, 5)
    ranks.signal(0, signal.SIGTERM)
    assert ranks.wait(LIMIT_SECONDS) == [75], ranks.outputs
    stopped_at = checkpoint_folders(tmp_path / "checkpoints")[0].name

    ranks = start(digits, tmp_path, forked_python, 1, ranks=1)
    for step in (int(stopped_at.removeprefix("step-")) // 5 * 5 + 5, 25):
        wait_for_checkpoint(ranks, tmp_path, step)
        os.kill(worker_of(ranks.processes[0].pid), signal.SIGKILL)
    assert ranks.wait(LIMIT_SECONDS) == [1], ranks.outputs
    assert "and the restarts are used up (--restarts 1)" in ranks.outputs[0]


@pytest.mark.parametrize(
    ("failure", "failures", "exit_code", "expected"),
    [
        ("bug", 1, 1, "error: rank 0 on NODE was ended by an exception, which another start would not change"),
        ("memory", 1, 1, "error: rank 0 on NODE ran out of memory, which another start would not change"),
        ("device", 1, 0, "restart 1 of 1: rank 0 on NODE had a fault of its device; all ranks start again"),
        ("unreadable", 1, 0, "restart 1 of 1: rank 0 on NODE could not read or write a file; all ranks start again"),
        ("storage", 1, 0, "restart 1 of 1: rank 0 on NODE could not read or write a file; all ranks start again"),
        ("storage", 2, 1, "error: rank 0 on NODE could not read or write a file, and the restarts are used up"),
        (
            "device",
            2,
            1,
            "had a fault of its device (failure 2 on NODE: leave that machine out if it goes on), and the",
        ),
    ],
)
def test_what_another_start_may_help_with_is_restarted(
    digits: Path,
    tmp_path: Path,
    forked_python: Path,
    failure: str,
    failures: int,
    exit_code: int,
    expected: str,
) -> None:
    environment = {"TINY_TASK_FAILURE": failure, "TINY_TASK_FAILURES": str(failures)}
    arguments = training_arguments(digits, tmp_path, "tiny_task:Failing", "--max-steps", 2, "--restarts", 1)
    ranks = start_ranks("train_ddp", arguments, 1, environment=environment, python=forked_python)
    assert ranks.wait(LIMIT_SECONDS) == [exit_code], ranks.outputs
    assert expected.replace("NODE", f"node 0 ({socket.gethostname()})") in ranks.outputs[0]
    assert ranks.outputs[0].count("Traceback (most recent call last)") == (failures if failure != "unreadable" else 0)
    assert ("restart 1 of 1" in ranks.outputs[0]) == (failure in ("device", "storage", "unreadable"))


def test_starting_over_at_each_restart_is_refused(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = training_arguments(digits, tmp_path, "tiny_task:Slow", "--restarts", 1, "--resume", "never")
    assert train_ddp.main([str(argument) for argument in arguments]) == 1
    assert "--restarts would start over each time with --resume never" in capsys.readouterr().err


def test_torchrun_restarts_by_itself(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    arguments = training_arguments(digits, tmp_path, "tiny_task:Slow", "--restarts", 1)
    assert train_ddp.main([str(argument) for argument in arguments]) == 2
    assert "--restarts: torchrun restarts ranks by itself; use its --max-restarts instead" in capsys.readouterr().err
