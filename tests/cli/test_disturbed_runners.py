"""The runner itself killed, and Ctrl-C, at random moments: three of each in `make test`, a hundred in `make soak`.

Nothing may be left running, `runs list` tells the truth, and `runs resume` finishes the run with the right results.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.guardian import processes_beneath

FEW, MANY = 3, 100
WAIT_SECONDS = 60
# A child in a session of its own, as a data loader may be; the runner has to find it.
STEP = """
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.2)"], start_new_session=True)
source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
time.sleep(0.2)
(out / "sum").write_text(str(int((source / "sum").read_text()) + 1))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A chain of three jobs, the second on two ranks, beside a fourth; each adds one."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "step.py").write_text(STEP)
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sum").write_text("0")

    def job(source: Any, **fields: Any) -> dict[str, Any]:
        component = {
            "type": "command",
            "command": "python step.py '${{inputs.source}}' '${{outputs.out}}'",
            "code": "src",
            "environment": "azureml:some_environment:1",
            "inputs": {"source": {"type": "uri_folder"}},
            "outputs": {"out": {"type": "uri_folder"}},
            **fields,
        }
        return {"type": "command", "component": component, "inputs": {"source": source}}

    start = {"type": "uri_folder", "path": "start"}
    jobs = {
        "first": job(start),
        "second": job(
            "${{parent.jobs.first.outputs.out}}", distribution={"type": "pytorch", "process_count_per_instance": 2}
        ),
        "third": job("${{parent.jobs.second.outputs.out}}"),
        "beside": job(start),
    }
    document = {"type": "pipeline", "settings": {"default_compute": "azureml:cpu"}, "jobs": jobs}
    (tmp_path / "pipeline.yml").write_text(json.dumps(document))
    return tmp_path


def trainyard(project: Path, *words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.Popen(
        [sys.executable, "-m", "trainyard", *words],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def disturb(project: Path, name: str, number: signal.Signals, after_seconds: float) -> None:
    """Run, disturb the runner, and check what is left: no process, a truthful list, a run that can be continued."""
    folder = project / ".trainyard" / "runs" / name
    runner = trainyard(project, "run", "pipeline.yml", "--name", name, "--no-cache")
    time.sleep(after_seconds)
    runner.send_signal(number)
    runner.communicate(timeout=WAIT_SECONDS)
    deadline = time.monotonic() + WAIT_SECONDS
    while processes_beneath(folder):
        assert time.monotonic() < deadline, "processes were left"
        time.sleep(0.05)
    if not (folder / "run.json").exists():
        return  # it was too early: nothing had begun

    listed, _ = trainyard(project, "runs", "list", "--format", "json").communicate(timeout=WAIT_SECONDS)
    run = next(run for run in json.loads(listed) if run["name"] == name)
    # A runner may be hit after the run's end, while it writes the report.
    assert run["status"] == "completed" or (run["status"] == "canceled" and runner.returncode != 0), run
    assert not {"running", "waiting"} & {job["status"] for job in run["jobs"].values()}
    if run["status"] == "canceled":
        resumed = trainyard(project, "runs", "resume", name)
        said, _ = resumed.communicate(timeout=WAIT_SECONDS)
        assert resumed.returncode == 0, said
    record = json.loads((folder / "run.json").read_text())
    assert {job["status"] for job in record["jobs"].values()} == {"completed"}
    sums = {job: (folder / "jobs" / job / "outputs" / "out" / "sum").read_text() for job in record["jobs"]}
    assert sums == {"first": "1", "second": "2", "third": "3", "beside": "1"}


def seconds_of_a_run(project: Path) -> float:
    began = time.monotonic()
    runner = trainyard(project, "run", "pipeline.yml", "--name", "undisturbed", "--no-cache")
    said, _ = runner.communicate(timeout=WAIT_SECONDS)
    assert runner.returncode == 0, said
    return time.monotonic() - began


def disturb_at_random(project: Path, number: signal.Signals, times: int) -> None:
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
    chance, longest = random.Random(seed), seconds_of_a_run(project)
    for each in range(times):
        moment = chance.uniform(0.1, 0.95) * longest
        try:
            disturb(project, f"run-{each}", number, moment)
        except BaseException:
            print(f"{number.name} after {moment:.2f} s of {longest:.2f} s (SEED={seed})")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_disturbed_runner_leaves_a_run_that_can_be_continued(project: Path, number: signal.Signals) -> None:
    disturb_at_random(project, number, FEW)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_runners_disturbed_many_times_leave_runs_that_can_be_continued(project: Path, number: signal.Signals) -> None:
    disturb_at_random(project, number, MANY)


INTERRUPTED_WHILE_LOADING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background of a shell ignores it
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from trainyard.cli import main
main(["run", "pipeline.yml"])
"""


@pytest.mark.parametrize("module", ["trainyard.cli.entry", "click", "trainyard.errors", "trainyard.cli.run", "yaml"])
def test_ctrl_c_while_the_program_loads_is_answered_in_a_line(project: Path, module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING, module], cwd=project, capture_output=True, text=True
    )

    assert (ended.returncode, ended.stderr.strip()) == (130, "error: interrupted")


def test_ctrl_c_is_answered_before_the_jobs_have_ended(project: Path) -> None:
    stubborn = "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
    step = f"{stubborn}pathlib.Path('ready').touch()\ntime.sleep({WAIT_SECONDS})\n"
    (project / "src" / "step.py").write_text(step)
    runner = trainyard(project, "run", "pipeline.yml", "--name", "it", "--quiet")
    ready = project / ".trainyard/runs/it/jobs/first/nodes"
    deadline = time.monotonic() + WAIT_SECONDS
    while not list(ready.rglob("ready")):
        assert time.monotonic() < deadline, "the job did not start"
        time.sleep(0.05)

    runner.send_signal(signal.SIGINT)
    assert runner.stdout is not None
    answer = runner.stdout.readline()
    runner.send_signal(signal.SIGINT)
    said, _ = runner.communicate(timeout=WAIT_SECONDS)

    assert answer.endswith("SIGINT received: asking the jobs to end; once more ends them at once\n")
    assert said.index("SIGINT received again: ending the jobs at once") < said.index("run it canceled after")
    assert "Traceback" not in said
    assert runner.returncode == 130
