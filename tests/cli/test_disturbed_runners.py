"""Runs disturbed at random moments: a few killed or canceled in `make test`, a hundred of each kind in `make soak`.

Nothing may be left running, `runs list` tells the truth, and `runs resume` or the next run finishes the work with the
right results, and repeats no job.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.guardian import processes_beneath

FEW, MANY = 3, int(os.environ.get("DISTURBANCES", "100"))
WAIT_SECONDS = 300
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


@dataclass
class Hit:
    """A runner that is about to be disturbed."""

    runner: subprocess.Popen[str]
    folder: Path
    """The folder of its run."""
    chance: random.Random

    @property
    def project(self) -> Path:
        return self.folder.parents[2]

    def one_process(self) -> int | None:
        """A process of a job, or one that a job started; None while there is none."""
        found = processes_beneath(self.folder)
        return self.chance.choice(found) if found else None


def signals(*numbers: signal.Signals) -> Callable[[Hit], None]:
    """Send the runner these signals, less than a fifth of a second apart."""

    def send(hit: Hit) -> None:
        for number in numbers:
            hit.runner.send_signal(number)
            time.sleep(hit.chance.uniform(0, 0.2))

    return send


def signal_job(number: signal.Signals) -> Callable[[Hit], None]:
    """Send one process of a job this signal."""

    def send(hit: Hit) -> None:
        process = hit.one_process()
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process, number)

    return send


def stop_job_and_cancel(hit: Hit) -> None:
    """A process that is stopped answers no request to end."""
    signal_job(signal.SIGSTOP)(hit)
    signals(signal.SIGINT, signal.SIGINT)(hit)


def fill_disk(hit: Hit) -> None:
    """Nothing more can be written until the runner has ended."""
    with suppress(OSError), (hit.project / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))


def delete_run(hit: Hit) -> None:
    shutil.rmtree(hit.folder, ignore_errors=True)


DISTURBANCES: dict[str, Callable[[Hit], None]] = {
    "SIGKILL": signals(signal.SIGKILL),
    "SIGINT": signals(signal.SIGINT),
    "SIGINT twice": signals(signal.SIGINT, signal.SIGINT),
    "SIGTERM": signals(signal.SIGTERM),
    "SIGHUP": signals(signal.SIGHUP),
    "stopped runner": signals(signal.SIGSTOP, signal.SIGCONT),
    "killed process": signal_job(signal.SIGKILL),
    "stopped process": stop_job_and_cancel,
    "full disk": fill_disk,
    "deleted run": delete_run,
}

FAIL_JOBS = ("killed process", "full disk", "deleted run")
"""After these a run may have failed; after what only the runner gets, it completes or is canceled."""


def disturb(project: Path, name: str, kind: str, chance: random.Random, longest_seconds: float) -> str:
    """Run, disturb at a random moment, and check what is left; return how the run ended, "" if it had not begun.

    That is: no process, a truthful list, and a run that can be continued, or run again, without repeating a job.
    """
    folder = project / ".trainyard" / "runs" / name
    start = chance.randrange(1_000_000)
    (project / "start" / "sum").write_text(str(start))
    runner = trainyard(project, "run", "pipeline.yml", "--name", name)
    time.sleep(chance.uniform(0.1, 0.95) * longest_seconds)
    DISTURBANCES[kind](Hit(runner, folder, chance))
    shown, _ = runner.communicate(timeout=WAIT_SECONDS)
    (project / "filler").unlink(missing_ok=True)
    deadline = time.monotonic() + WAIT_SECONDS
    while processes_beneath(folder):
        assert time.monotonic() < deadline, "processes were left"
        time.sleep(0.05)
    assert "Traceback" not in shown, shown
    ended = status_of(project, name, runner.returncode) if (folder / "run.json").exists() else ""
    assert ended != "failed" or kind in FAIL_JOBS, shown
    is_deleted = kind == "deleted run"  # a run may complete whose outputs are gone
    if ended == "completed" and not is_deleted:
        assert_added(folder, start)
        return ended
    before = {} if is_deleted else jobs_of(folder)
    again = name if ended and not is_deleted and chance.random() < 0.5 else f"{name}-again"
    words = ("runs", "resume", name) if again == name else ("run", "pipeline.yml", "--name", again)
    next_runner = trainyard(project, *words)
    shown, _ = next_runner.communicate(timeout=WAIT_SECONDS)
    assert next_runner.returncode == 0, shown
    assert_added(folder.with_name(again), start)
    after = jobs_of(folder.with_name(again))
    for job, record in before.items():
        if record["status"] == "completed":
            assert after[job] == record if again == name else after[job]["reused_from"], job
    return ended


def status_of(project: Path, name: str, exit_code: int) -> str:
    """How the list says that the run ended, which its exit code says as well."""
    listed, _ = trainyard(project, "runs", "list", "--format", "json").communicate(timeout=WAIT_SECONDS)
    run = next(run for run in json.loads(listed) if run["name"] == name)
    # A runner may be hit after the run's end, while it writes the report.
    assert run["status"] == "completed" or (run["status"] in ("canceled", "failed") and exit_code != 0), run
    assert not {"running", "waiting"} & {job["status"] for job in run["jobs"].values()}
    return str(run["status"])


def jobs_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The jobs in a run's record; none without one."""
    file = folder / "run.json"
    jobs: dict[str, dict[str, Any]] = json.loads(file.read_text())["jobs"] if file.exists() else {}
    return jobs


def assert_added(folder: Path, start: int) -> None:
    jobs = jobs_of(folder)
    assert {job["status"] for job in jobs.values()} == {"completed"}
    sums = {job: int((folder / "jobs" / job / "outputs" / "out" / "sum").read_text()) - start for job in jobs}
    assert sums == {"first": 1, "second": 2, "third": 3, "beside": 1}


def seconds_of_a_run(project: Path) -> float:
    began = time.monotonic()
    runner = trainyard(project, "run", "pipeline.yml", "--name", "undisturbed")
    said, _ = runner.communicate(timeout=WAIT_SECONDS)
    assert runner.returncode == 0, said
    return time.monotonic() - began


def disturb_at_random(project: Path, kind: str, times: int) -> Counter[str]:
    """Disturb as often; return how many of the runs ended how."""
    seed = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
    chance, longest = random.Random(f"{seed} {kind}"), seconds_of_a_run(project)
    ends: Counter[str] = Counter()
    for each in range(times):
        try:
            ends[disturb(project, f"run-{each}", kind, chance, longest)] += 1
        except BaseException:
            print(f"{kind}, number {each} of runs of {longest:.2f} s (SEED={seed})")
            raise
        shutil.rmtree(project / ".trainyard" / "runs")  # `runs list` reads them all
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGINT"])
def test_a_disturbed_runner_leaves_a_run_that_can_be_continued(project: Path, kind: str) -> None:
    disturb_at_random(project, kind, FEW)


@pytest.fixture
def small_disk(project: Path) -> Iterator[Path]:
    """The project on a file system of its own, which is soon full."""
    disk = project / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"only root may mount a small disk: {mounted.stderr.strip()}")
    for part in ("src", "start"):
        shutil.copytree(project / part, disk / part)
    shutil.copy(project / "pipeline.yml", disk)
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.soak
@pytest.mark.parametrize("kind", DISTURBANCES)
def test_runs_disturbed_many_times_can_be_continued(
    project: Path, kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = disturb_at_random(request.getfixturevalue("small_disk") if kind == "full disk" else project, kind, MANY)
    counted = ", ".join(f"{count} {end or 'not begun'}" for end, count in ends.most_common())
    with capsys.disabled():
        print(f"\n{kind}: {counted}")


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


def test_ctrl_c_while_an_input_is_copied_is_answered_and_ends_the_copy(project: Path) -> None:
    many = 20_000
    for number in range(many):
        (project / "start" / f"{number}.txt").write_text("1")
    runner = trainyard(project, "run", "pipeline.yml", "--name", "it")
    copied = project / ".trainyard/runs/it/jobs/first/data/INPUT_source"
    deadline = time.monotonic() + WAIT_SECONDS
    while not copied.is_dir():
        assert time.monotonic() < deadline, "the copy did not begin"
        time.sleep(0.01)

    runner.send_signal(signal.SIGINT)
    shown, _ = runner.communicate(timeout=WAIT_SECONDS)

    assert runner.returncode == 130
    assert "SIGINT received: asking the jobs to end" in shown
    assert "first canceled: SIGINT received" in shown
    assert "Traceback" not in shown
    assert len(list(copied.iterdir())) < many
