"""Ctrl-C, SIGTERM and SIGKILL to a real runner in a process of its own: no process stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.guardian import processes_beneath
from trainyard.rehearse.run_store import read_record

RUNNER = """
import sys
from pathlib import Path
from trainyard.rehearse.display import Display
from trainyard.rehearse.runner import RunOptions, run_pipeline
from trainyard.spec.loading import load_job
options = RunOptions(Path(sys.argv[2]), name="it", grace_seconds=float(sys.argv[3]))
record = run_pipeline(load_job(Path(sys.argv[1]), strict=True), options, Display())
sys.exit(0 if record.status == "completed" else 1)
"""

SLEEPERS = """
import os, signal, subprocess, sys, time
child = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(120)"]
subprocess.Popen(child, start_new_session=True)
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(120)
"""


# A shell that started its Python dies of SIGTERM at once; the Python takes a second to save its state.
SAVING = """
import signal, sys, time
def save(*_):
    time.sleep(1)
    open(sys.argv[1] + "/saved", "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(120)
"""


@pytest.fixture
def start_runner(workspace: Any) -> Iterator[Any]:
    """Starts `python -m`-like runner over a job of two ranks with a child each, and waits until all are up."""
    started: list[subprocess.Popen[bytes]] = []
    (workspace.code / "sleepers.py").write_text(SLEEPERS)
    (workspace.root / "runner.py").write_text(RUNNER)

    def start(behaviour: str, grace_seconds: float) -> subprocess.Popen[bytes]:
        file = workspace.one_job(
            f"python sleepers.py {behaviour}", distribution={"type": "pytorch", "process_count_per_instance": 2}
        )
        arguments = [str(workspace.root / "runner.py"), str(file), str(workspace.runs_folder), str(grace_seconds)]
        source = str(Path(__file__).parents[2] / "src")
        runner = subprocess.Popen([sys.executable, *arguments], env={**os.environ, "PYTHONPATH": source})
        started.append(runner)
        logs = [workspace.runs_folder / "it/jobs/work/user_logs" / f"std_log_process_{rank}.txt" for rank in (0, 1)]
        wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs))
        # A process that has just begun to execute has no environment to be known by for a moment.
        wait_until(lambda: len(processes_beneath(workspace.runs_folder / "it")) >= 4)
        return runner

    yield start
    for runner in started:
        runner.kill()
        runner.wait()


def tracked_statuses(workspace: Any) -> Counter[int]:
    runs = (workspace.root / ".trainyard/mlruns").glob("*/*/meta.yaml")
    return Counter(yaml.safe_load(run.read_text())["status"] for run in runs)


def wait_until(condition: Any, seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_a_job_behind_a_shell_has_the_whole_grace(workspace: Any, output_of: Any) -> None:
    (workspace.code / "saving.py").write_text(SAVING)
    command = "true && python saving.py '${{outputs.state}}' && true"
    saves = workspace.component("saves", command, outputs={"state": "uri_folder"})
    fails = workspace.component("fails", "sleep 0.7; exit 1")

    record = workspace.run(workspace.pipeline({"saves": {"component": saves}, "fails": {"component": fails}}))

    assert {name: job.status for name, job in record.jobs.items()} == {"saves": "canceled", "fails": "failed"}
    assert (output_of(record, "saves", "state") / "saved").exists()


def test_the_first_signal_after_a_failure_leaves_the_grace_to_the_others(workspace: Any, output_of: Any) -> None:
    signals_the_runner = f"def save(*_):\n    import os; os.kill({os.getpid()}, signal.SIGINT)"
    (workspace.code / "saving.py").write_text(SAVING.replace("def save(*_):", signals_the_runner))
    saves = workspace.component("saves", "exec python saving.py '${{outputs.state}}'", outputs={"state": "uri_folder"})
    fails = workspace.component("fails", "sleep 0.7; exit 1")
    file = workspace.pipeline({"saves": {"component": saves}, "fails": {"component": fails}})

    record = workspace.run(file, grace_seconds=10)

    assert (record.status, record.reason) == ("failed", "fails failed: its process ended with exit code 1")
    assert record.jobs["saves"].attempts[0].exit_codes == {"0": 75}
    assert (output_of(record, "saves", "state") / "saved").exists()


def test_a_second_failure_does_not_shorten_the_grace() -> None:
    stop = Cancellation()

    stop.request("job one failed")
    stop.request("job two failed")

    assert (stop.reason, stop.at_once.is_set()) == ("job one failed", False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_cancels_the_run(workspace: Any, start_runner: Any, number: signal.Signals) -> None:
    runner = start_runner("obedient", 10)

    runner.send_signal(number)

    assert runner.wait(timeout=8) == 1
    record = read_record(workspace.runs_folder / "it")
    assert (record.status, record.reason) == ("canceled", f"{number.name} received")
    assert record.jobs["work"].status == "canceled"
    assert record.jobs["work"].attempts[0].exit_codes == {"0": -15, "1": -15}
    assert processes_beneath(record.folder) == []


def test_a_canceled_run_does_not_finish_the_copy_of_an_input(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard.rehearse.attempts._COPIED_AT_ONCE_BYTES", 1)  # it takes half a minute
    (workspace.root / "data.bin").write_bytes(bytes(32 << 20))
    data = {"type": "uri_file", "path": "../data.bin"}
    reads = workspace.component("reads", "cat ${{inputs.data}}", inputs={"data": {"type": "uri_file"}})
    file = workspace.pipeline({"reads": {"component": reads, "inputs": {"data": data}}})
    copied = workspace.runs_folder / "it/jobs/reads/data/INPUT_data/data.bin"

    def interrupt() -> None:
        wait_until(copied.exists)
        os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=interrupt)
    user.start()
    record = workspace.run(file, name="it")
    user.join()

    assert (record.status, record.reason) == ("canceled", "SIGINT received")
    job = record.jobs["reads"]
    assert (job.status, job.reason, job.attempts) == ("canceled", "SIGINT received", [])
    assert "reads canceled: SIGINT received" in workspace.shown
    assert "reads running" not in workspace.shown


def test_a_second_signal_kills_at_once(workspace: Any, start_runner: Any) -> None:
    runner = start_runner("stubborn", 60)

    runner.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert runner.poll() is None
    runner.send_signal(signal.SIGINT)

    assert runner.wait(timeout=8) == 1
    record = read_record(workspace.runs_folder / "it")
    assert record.status == "canceled"
    assert record.jobs["work"].attempts[0].exit_codes == {"0": -9, "1": -9}
    assert processes_beneath(record.folder) == []


def test_a_killed_runner_leaves_no_process_and_a_readable_record(workspace: Any, start_runner: Any) -> None:
    runner = start_runner("stubborn", 60)
    folder = workspace.runs_folder / "it"
    assert read_record(folder).status == "running"

    runner.kill()
    runner.wait()

    wait_until(lambda: processes_beneath(folder) == [])
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    assert tracked_statuses(workspace) == {1: 2}
    record = read_record(folder)
    assert tracked_statuses(workspace) == {5: 2}, "MLflow's runs, of the pipeline and its job, were killed as well"
    assert (record.status, record.jobs["work"].status) == ("canceled", "canceled")
    assert record.reason == "the runner was killed before it could record how the run ended"
    assert json.loads((folder / "run.json").read_text())["status"] == "canceled"
