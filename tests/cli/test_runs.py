"""`trainyard runs`: comparing runs, following logs, and deleting only what was agreed to."""

from __future__ import annotations

import io
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from trainyard.settings.run_record import read_run_record

Run = Callable[..., Any]

HELLO = """\
type: pipeline
inputs:
  greeting: hello
  times: 1
jobs:
  hello:
    type: command
    command: for i in $(seq ${{inputs.times}}); do echo ${{inputs.greeting}} $i; done
    environment: azureml:any:1
    inputs:
      greeting: ${{parent.inputs.greeting}}
      times: ${{parent.inputs.times}}
"""


@pytest.fixture
def two_runs(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs `first` and `second`, which differ in a greeting."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello.yaml").write_text(HELLO)
    for name, greeting in (("first", "hello"), ("second", "servus")):
        outcome = trainyard("run", "hello.yaml", "--name", name, "--set", f"inputs.greeting={greeting}")
        assert outcome.exit_code == 0, outcome.stderr
    return tmp_path


def test_compare_prints_what_differs_and_writes_a_page(
    trainyard: Run, two_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = trainyard("runs", "compare", "first", "second")

    assert outcome.exit_code == 0, outcome.stderr
    lines = [line.split() for line in outcome.stdout.splitlines()]
    assert ["inputs.greeting", "hello", "servus"] in lines
    assert not any("inputs.times" in line for line in lines)
    assert all(len(line) <= 80 for line in outcome.stdout.splitlines())
    page = two_runs / ".trainyard/comparisons/first_second.html"
    assert "servus" in page.read_text()

    assert trainyard("runs", "compare", "first", "second", "--out", "page.html").exit_code == 0
    assert Path("page.html").is_file()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["first"], "expected 2 to 6 runs to compare, got 1"),
        (["first", "secnd"], "unknown run 'secnd'. Did you mean 'second'?"),
        (["first"] * 7, "expected 2 to 6 runs to compare, got 7"),
    ],
)
def test_compare_needs_two_to_six_runs(trainyard: Run, two_runs: Path, names: list[str], words: str) -> None:
    outcome = trainyard("runs", "compare", *names)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert words in outcome.stderr


LOGS = """\
type: pipeline
inputs: {rate: 0.1}
jobs:
  fit:
    type: command
    command: python fit.py ${{inputs.rate}}
    code: src
    environment: azureml:any:1
    inputs: {rate: "${{parent.inputs.rate}}"}
"""
FIT = """\
import json, os, sys
from mlflow import MlflowClient
client, run, rate = MlflowClient(), os.environ["MLFLOW_RUN_ID"], float(sys.argv[1])
client.log_param(run, "depth", 3)
client.set_tag(run, "owner", "ada")
client.set_tag(run, "note", "two\\nlines\\x1b]0;title\\x07")
client.log_param(run, "hf_token", "hf_" + 30 * "a")
for step in range(3):
    client.log_metric(run, "rmse", rate * (3 - step), step=step)
client.log_table(run, {"store": ["a", "b"], "error": [rate, 0.5]}, "worst.json")
"""


def test_what_jobs_log_with_mlflow_is_listed_sorted_shown_and_compared_and_of_reused_jobs_too(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/fit.py").write_text(FIT)
    (tmp_path / "fit.yaml").write_text(LOGS)
    for name, rate in (("high", 0.4), ("low", 0.2), ("again", 0.4)):
        run = trainyard("run", "fit.yaml", "--name", name, "--set", f"inputs.rate={rate}")
        assert run.exit_code == 0, run.stderr
    assert trainyard("runs", "clean", "--keep", "2", "--yes").exit_code == 0  # what `again` has reused is gone

    assert trainyard("runs", "list", "--columns", "run,nothing", "--format", "json").exit_code == 2
    listed = trainyard("runs", "list", "--columns", "run,rate,depth", "--metric", "rmse", "--sort", "rmse")
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["run", "rate", "depth", "rmse"],
        ["low", "0.2", "3", "0.2"],
        ["again", "0.4", "3", "0.4"],
    ]
    downwards = trainyard("runs", "list", "--sort", "rmse", "--descending", "--format", "json")
    assert [(run["name"], run["metrics"]) for run in json.loads(downwards.stdout)] == [
        ("again", {"rmse": 0.4}),
        ("low", {"rmse": 0.2}),
    ]
    wrong = trainyard("runs", "list", "--metric", "rmes")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "no run has a metric or parameter 'rmes'. Did you mean 'rmse'?" in wrong.stderr

    shown = [line.split() for line in trainyard("runs", "show", "again").stdout.splitlines()]
    for line in (
        ["fit", "completed", "0", "s", "reused", "from", "high"],
        ["fit", "rmse", "0.4"],
        ["fit", "owner", "ada"],
    ):
        assert line in shown
    assert ["fit", "worst.json", "table", "of", "2", "rows"] in shown
    assert ["fit", "note", "two", "lines"] in shown
    for command in (
        ("show", "again"),
        ("show", "again", "--format", "json"),
        ("list", "--columns", "run,hf_token,note"),
    ):
        said = trainyard("runs", *command).stdout
        assert "hf_token" in said
        assert "aaaa" not in said
        assert "\x1b" not in said

    compared = trainyard("runs", "compare", "again", "low", "--out", "page.html").stdout
    assert ["fit:", "rmse", "0.4", "0.2"] in [line.split() for line in compared.splitlines()]
    page = (tmp_path / "page.html").read_text()
    assert "rmse by step. A: first 1.2, last 0.4" in page
    assert "B: first 0.6, last 0.2" in page
    report = (tmp_path / ".trainyard/runs/again/report.html").read_text()
    assert '<caption class="mono">worst.json</caption>' in report
    assert "<td>ada</td>" in report


def test_a_run_that_is_kept_elsewhere_is_among_the_others_until_it_is_removed(
    trainyard: Run, two_runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("first", "third"):
        run = trainyard("run", "hello.yaml", "--name", name, "--run-dir", str(elsewhere / name))
        assert run.exit_code == 0, run.stderr

    def listed() -> list[str]:
        lines = trainyard("runs", "list", "--columns", "run").stdout.splitlines()
        return [line.strip() for line in lines[1:]]

    assert listed() == ["third", "first", "second", "first"]
    assert "third: completed" in trainyard("runs", "show", "third").stdout
    assert trainyard("runs", "clean", "--keep", "0", "--yes").exit_code == 0
    assert listed() == ["third", "first"], "what is kept elsewhere is not deleted"
    shutil.rmtree(elsewhere)
    assert listed() == []


def test_clean_shows_what_it_would_delete_and_deletes_only_with_yes(trainyard: Run, two_runs: Path) -> None:
    asked = trainyard("runs", "clean", "--keep", "1")
    assert asked.exit_code == 0
    assert "first  completed" in asked.stderr
    assert "second" not in asked.stderr
    assert "nothing deleted; --yes deletes them" in asked.stderr
    assert (two_runs / ".trainyard/runs/first").is_dir()

    done = trainyard("runs", "clean", "--keep", "1", "--yes")
    assert "deleted 1 run" in done.stderr
    assert not (two_runs / ".trainyard/runs/first").exists()
    assert (two_runs / ".trainyard/runs/second").is_dir()

    assert "nothing to delete: 1 run" in trainyard("runs", "clean", "--keep", "1").stderr


@pytest.mark.parametrize(("answer", "is_kept"), [("n\n", True), ("\n", True), ("y\n", False)])
def test_on_a_terminal_clean_asks(
    trainyard: Run, two_runs: Path, monkeypatch: pytest.MonkeyPatch, answer: str, is_kept: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    outcome = trainyard("runs", "clean", "--keep", "0")

    assert outcome.exit_code == 0
    assert "delete these 2 runs?" in outcome.stderr
    assert (two_runs / ".trainyard/runs/first").exists() is is_kept


SLOW = """\
type: pipeline
jobs:
  slow:
    type: command
    command: echo one; while [ ! -e GO ]; do sleep 0.05; done; echo two
    environment: azureml:any:1
"""


def test_logs_can_be_followed_until_the_run_ends(tmp_path: Path) -> None:
    """The job ends only when its first line was seen by the follower."""
    go = tmp_path / "go"
    (tmp_path / "slow.yaml").write_text(SLOW.replace("GO", str(go)))
    program = [sys.executable, "-m", "trainyard"]
    pipes: dict[str, Any] = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*program, "run", "slow.yaml", "--name", "slow"], **pipes) as run:
        assert run.stderr is not None
        try:
            next(line for line in run.stderr if "running" in line)
            with subprocess.Popen([*program, "runs", "logs", "slow", "--follow"], **pipes) as follower:
                assert follower.stdout is not None
                assert follower.stdout.readline() == "one\n"
                go.touch()
                rest, errors = follower.communicate(timeout=120)
            run.communicate(timeout=120)
        finally:
            go.touch()
            run.kill()
    assert (rest, follower.returncode) == ("two\n", 0)
    assert errors.count("==> ") == 1


def test_a_run_is_watched_until_it_ends(tmp_path: Path) -> None:
    (tmp_path / "hello.yaml").write_text(HELLO.replace("echo ${{inputs.greeting}} $i; done", "sleep 3; done"))
    command = [sys.executable, "-m", "trainyard", "run", "hello.yaml", "--watch"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        address = next(line.split()[-1] for line in process.stdout if "watch it at http://127.0.0.1:" in line)
        for path in ("", "events"):
            _ask_and_leave(address, path)
        with urlopen(f"{address}events", timeout=60) as events:
            followed = events.read().decode()
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "event: page" in followed
    last = json.loads(followed.rpartition("event: ended\ndata: ")[2])
    assert last["text"] == "The run has ended: completed."
    assert "<title>hello · " in last["page"]
    assert "· completed</title>" in last["page"]
    assert "Traceback" not in said


def _ask_and_leave(address: str, path: str) -> None:
    """Ask as a browser does, and break the connection off without reading the answer."""
    parts = urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as browser:
        browser.sendall(f"GET {parts.path}{path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


CHAIN = """\
type: pipeline
jobs:
  prepared_for_long:
    type: command
    command: ls ${{inputs.data}} > ${{outputs.names}}
    environment: azureml:any:1
    inputs: {data: {type: uri_folder, path: ./data}}
    outputs: {names: {type: uri_file}}
  at_once:
    type: command
    command: cat ${{inputs.names}}
    environment: azureml:any:1
    inputs: {names: {type: uri_file, path: "${{parent.jobs.prepared_for_long.outputs.names}}"}}
"""


def test_a_job_starts_when_it_is_prepared_and_after_what_it_waits_for_has_ended(
    trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying the input of the first job takes a good part of its time, and that of the second none."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chain.yaml").write_text(CHAIN)
    (tmp_path / "data").mkdir()
    for number in range(2000):
        (tmp_path / "data" / str(number)).touch()
    assert trainyard("run", "chain.yaml", "--name", "chain").exit_code == 0

    record = read_run_record(tmp_path / ".trainyard/runs/chain")
    first, second = (record.jobs[name].attempts[0] for name in ("prepared_for_long", "at_once"))
    assert first.started_at is not None
    assert second.started_at is not None
    assert first.duration_s is not None
    assert first.started_at + timedelta(seconds=first.duration_s) <= second.started_at
    assert record.jobs["prepared_for_long"].started == first.started


def test_a_folder_without_runs_is_sorted_too(trainyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = trainyard("runs", "list", "--sort", "started")
    assert (outcome.exit_code, outcome.stdout) == (0, "")
    assert "no runs in" in outcome.stderr


@pytest.mark.parametrize(
    "command", [("list",), ("show", "second"), ("compare", "first", "second"), ("logs", "second"), ("resume", "second")]
)
def test_the_record_of_a_killed_runner_is_corrected_by_what_reads_it(
    trainyard: Run, two_runs: Path, command: tuple[str, ...]
) -> None:
    file = two_runs / ".trainyard/runs/second/run.json"
    document = json.loads(file.read_text())
    document["status"], document["jobs"]["hello"]["status"] = "running", "running"
    file.write_text(json.dumps(document))

    outcome = trainyard("runs", *command)

    assert outcome.exit_code == 0, outcome.stderr
    run = json.loads(file.read_text())
    is_resumed = command[0] == "resume"
    assert run["status"] == run["jobs"]["hello"]["status"] == ("completed" if is_resumed else "canceled")
    assert is_resumed or run["reason"] == "the runner was killed before it could record how the run ended"


SLEEPING = """
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
type: command
command: echo started && sleep 600
environment: azureml:e:1
"""


def test_a_run_whose_runner_was_killed_is_served_as_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real runner, killed with SIGKILL while its job runs: neither the index nor the run's page waits for more."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yml").write_text(SLEEPING)
    folder = tmp_path / ".trainyard/runs/killed"
    command = [sys.executable, "-m", "trainyard"]
    runner = subprocess.Popen([*command, "run", "job.yml", "--name", "killed"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not any("started" in log.read_text() for log in folder.glob("jobs/*/user_logs/*")):
            assert runner.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        runner.kill()
        runner.wait()
    assert json.loads((folder / "run.json").read_text())["status"] == "running", "it could not say how it ended"

    server = subprocess.Popen([*command, "runs", "serve"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with urlopen(address, timeout=60) as answer:
            index = answer.read().decode()
        with urlopen(f"{address}killed/", timeout=60) as answer:
            page = answer.read().decode()
        with urlopen(f"{address}killed/events", timeout=60) as answer:
            events = answer.read().decode()  # to their end: a page of a run that goes on has none
    finally:
        server.kill()
        server.communicate(timeout=60)
    assert re.findall(r'data-status="(\w+)"', index) == ["canceled"]
    assert "the runner was killed before it could record how the run ended" in page
    assert "event: ended" in events
    assert "The run has ended: canceled." in events
    assert json.loads((folder / "run.json").read_text())["status"] == "canceled"


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && cd "$1" || exit 9
shift
exec "$@"
"""


def test_a_project_that_cannot_be_written_runs_elsewhere(
    two_runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    unshare = ("unshare", "--map-root-user", "--mount", "bash", "-c", READ_ONLY, "bash", str(two_runs))
    if sys.platform != "linux" or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not allow mount namespaces")
    folder = tmp_path_factory.mktemp("elsewhere") / "run"
    (two_runs / "job.yaml").write_text(
        "type: command\ncommand: echo hi > '${{outputs.said}}/hi'\nenvironment: azureml:any:1\n"
        "outputs: {said: {type: uri_folder}}\n"
    )

    def trainyard(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*unshare, sys.executable, "-m", "trainyard", *words], capture_output=True, text=True)

    refused = trainyard("run", "job.yaml")
    assert (refused.returncode, refused.stderr.count("error: ")) == (1, 1)
    assert "--run-dir DIR" in refused.stderr

    done = trainyard("run", "job.yaml", "--run-dir", str(folder))
    assert done.returncode == 0, done.stderr
    assert (folder / "jobs/job/outputs/said/hi").read_text() == "hi\n"
    assert f"{folder.name}: completed" in trainyard("runs", "show", str(folder)).stdout


def test_what_to_do_next_is_quoted_for_a_shell(trainyard: Run, two_runs: Path) -> None:
    (two_runs / "say hello.yaml").write_text(HELLO.replace("done", "done; exit 1"))

    outcome = trainyard("run", "say hello.yaml", "--run-dir", "my runs/it")

    assert outcome.exit_code == 1
    assert "trainyard runs logs 'my runs/it'" in outcome.stdout
    assert "trainyard runs resume 'my runs/it'" in outcome.stdout
