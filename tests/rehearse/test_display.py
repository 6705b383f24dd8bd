"""What users see: lines, a live table, or only failures."""

from __future__ import annotations

import io
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from trainyard.printing import last_lines
from trainyard.rehearse.attempts import log_name
from trainyard.rehearse.display import Display, TimeLeft, in_words, share_done
from trainyard.rehearse.outcome import WarningLines, last_error
from trainyard.rehearse.run_options import RunOptions
from trainyard.rehearse.runner import run_pipeline
from trainyard.settings.run_record import JobRecord, RunRecord, TrialRecord


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_shown(workspace: Any, file: Path, **how: Any) -> str:
    stream = how.pop("stream", io.StringIO())
    run_pipeline(workspace.load(file), RunOptions(workspace.runs_folder), Display(stream=stream, **how))
    return str(stream.getvalue())


def test_plain_lines_where_there_is_no_terminal(workspace: Any) -> None:
    file = workspace.one_job("echo hello", distribution={"type": "pytorch", "process_count_per_instance": 2})

    lines = run_shown(workspace, file).splitlines()

    shapes = [re.sub(r"\d\d:\d\d:\d\d", "TIME", re.sub(r"\d+\.\d s|\d+ ms", "N s", line)) for line in lines]
    assert shapes[1] == "TIME work running (2 processes: it has not run from this file before)"
    assert shapes[2] == "TIME work completed in N s"
    assert "\x1b" not in "".join(lines)
    assert "reused from run" in run_shown(workspace, file)


def test_quiet_shows_failures_only(workspace: Any) -> None:
    assert run_shown(workspace, workspace.one_job("true"), quiet=True) == ""
    shown = run_shown(workspace, workspace.one_job("echo why; exit 3"), quiet=True)
    assert " work failed: its process ended with exit code 3\n  | why\n  the full log: " in shown


def test_a_live_table_on_a_terminal(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("NO_COLOR", raising=False)
    fail = workspace.component("fail", "echo no labels; exit 1")
    slow = workspace.component("slow", "printf 'step 1\\rstep 2\\n'; sleep 0.6")
    file = workspace.pipeline({"first": {"component": slow}, "second": {"component": fail}})

    shown = run_shown(workspace, file, stream=Terminal())

    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert re.search(r"job +state +processes +time +progress +last line", text)
    assert re.search(r"second +failed +1 ", text)
    assert "  | no labels" in text
    assert "\x1b[31mfailed" in shown


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_last_line_gives_way_to_the_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    (tmp_path / "log").write_text("epoch 3 " + "loss=0.1 " * 60)
    jobs = {
        "prepare_images": JobRecord("prepare_images", "completed", processes_per_node=16, duration_s=3.2, logs=["log"]),
        "train": JobRecord("train", "failed", processes_per_node=16, reason="why", error_lines=["x" * 200]),
    }
    record = RunRecord("demo", "demo-1", "p", "p.yaml", "2026-01-01T00:00:00+00:00", jobs=jobs, folder=tmp_path)
    stream = Terminal()
    display = Display(stream=stream, live=True)

    display.run_started(record)
    display.job_changed(record, "train")
    display.close()

    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n").splitlines()
    row = next(line for line in lines if line.startswith("prepare_images"))
    processes = " +16" if width >= 100 else ""
    assert re.fullmatch(rf"prepare_images +completed{processes} +3\.2 s +epoch 3 (loss=0\.1 )+\S*…", row)
    assert len(row) == width
    assert f"  | {'x' * 200}" in lines


def test_a_running_job_shows_its_progress_within_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    log = tmp_path / "log"
    log.write_text("step 60/240  epoch 3  loss 0.4127  1231 samples/s\n")
    job = JobRecord("train_deepspeed", "running", started=datetime.now(timezone.utc).isoformat(), logs=["log"])
    record = RunRecord("demo", "demo-1", "p", jobs={"train_deepspeed": job}, folder=tmp_path)
    stream = Terminal()
    display = Display(stream=stream, live=True)

    display.run_started(record)
    display.close()

    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n")
    rows = [line for line in text.splitlines() if line.startswith("train_deepspeed")]
    assert re.match(r"train_deepspeed +running +\S+ m?s +25 % +step 60/240", rows[-1])
    assert all(len(row) <= 80 for row in rows)


def test_a_running_sweep_shows_how_many_trials_have_ended_and_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [TrialRecord(number, "completed" if number < 31 else "waiting") for number in range(50)]
    trials[7].metric, trials[7].is_best = 0.2351, True
    job = JobRecord("search", "running", started=datetime.now(timezone.utc).isoformat(), trials=trials)
    record = RunRecord("demo", "demo-1", "p", jobs={"search": job}, folder=tmp_path)

    shown, _ = rows_of(record, monkeypatch, lines=24)

    row = next(line for line in shown if line.startswith("search"))
    assert re.match(r"search +running +\S+ m?s +62 % +31 of 50, best 0\.2351 by trial 7", row)


def rows_of(record: RunRecord, monkeypatch: pytest.MonkeyPatch, *, lines: int) -> tuple[list[str], list[str]]:
    """What the table of a terminal of 80 columns shows while it is redrawn, and what stays of it."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", str(lines))
    stream = Terminal()
    display = Display(stream=stream, live=True)

    display.run_started(record)
    redrawn = len(stream.getvalue())
    display.close()

    texts = (stream.getvalue()[:redrawn], stream.getvalue()[redrawn:])
    plain = (re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "\n") for text in texts)
    shown, left = ([line.rstrip() for line in text.splitlines() if line.strip()] for text in plain)
    return shown, left


def test_a_long_name_leaves_room_for_the_other_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "train_and_evaluate_the_first_model.compare_with_the_one_before"
    jobs = {name: JobRecord(name, "completed", duration_s=72.0)}
    record = RunRecord("demo", "demo-1", "p", jobs=jobs, folder=tmp_path)

    shown, _ = rows_of(record, monkeypatch, lines=24)

    row = next(line for line in shown if line.startswith("train_and"))
    assert re.match(r"train_and_evaluat…th_the_one_before +completed +1 min 12 s", row)


def test_more_jobs_than_lines_show_those_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {f"job_{number}": JobRecord(f"job_{number}", "waiting") for number in range(122)}
    for number in range(60):
        jobs[f"job_{number}"].status = "completed"
    jobs["job_60"].status, jobs["job_61"].status = "running", "failed"
    record = RunRecord("demo", "demo-1", "p", jobs=jobs, folder=tmp_path)

    shown, left = rows_of(record, monkeypatch, lines=10)

    names = dict.fromkeys(line.split()[0] for line in shown if line.startswith("job_"))
    assert list(names) == [f"job_{number}" for number in range(60, 67)]
    assert "and 115 more: 60 completed, 55 waiting" in shown
    assert sum(line.startswith("job_") for line in left) >= len(jobs), "the table that stays has all"


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("step 60/240  epoch 3  loss 0.4127", 0.25),
        ("wrote 1,000 of 4,000 train images", 0.25),
        ("354 of 359 correct", 354 / 359),
        ("step 3", None),
        ("step 5/0", None),
        ("7 of 5", None),
    ],
)
def test_the_share_that_a_line_states(line: str, share: float | None) -> None:
    assert share_done(line) == share


def test_time_left_follows_from_what_was_seen() -> None:
    time_left = TimeLeft()

    assert time_left.estimate("train", 0.5, elapsed_s=10.0) is None  # resumed half-way
    assert time_left.estimate("train", 0.5, elapsed_s=15.0) is None
    assert time_left.estimate("train", 0.6, elapsed_s=20.0) == pytest.approx(40.0)
    assert time_left.estimate("train", 0.1, elapsed_s=30.0) is None  # it began again
    assert time_left.estimate("train", 0.2, elapsed_s=31.0) == pytest.approx(8.0)
    assert in_words(0.257, 65.2) == "25 %, 1 min 05 s left"


def test_no_color_is_obeyed(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")

    shown = run_shown(workspace, workspace.one_job("true"), stream=Terminal())

    assert not re.search(r"\x1b\[[0-9;]*3[0-9][;m]", shown)


@pytest.mark.parametrize(
    ("rank", "processes", "name"),
    [
        (0, 1, "std_log.txt"),
        (1, 2, "std_log_process_1.txt"),
        (3, 16, "std_log_process_03.txt"),
        (12, 16, "std_log_process_12.txt"),
    ],
)
def test_logs_are_named_as_azure_ml_names_them(rank: int, processes: int, name: str) -> None:
    assert log_name(rank, processes) == name


def test_warnings_are_found_as_a_log_grows(tmp_path: Path) -> None:
    log = tmp_path / "log"
    warnings = WarningLines(log)

    log.write_bytes(b"a line of a log\n" * 1000)
    assert warnings.new() == []

    with log.open("ab") as stream:
        stream.write(b"a line\n" * 1000 + b"warning: one\n\x1b[33mwarn\x1b[0ming: two\n 5%\rwarning: three\nwarning: f")
    assert warnings.new() == ["one", "two", "three"]

    with log.open("ab") as stream:
        stream.write(b"our\n")
    assert warnings.new() == ["four"]


def test_last_lines_are_text(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n\x1b[1;32mgreen\x1b[0m\n\n 10%\r 50%\r100%\n\xff broken\n")

    assert last_lines(log, 3) == ["green", "100%", "\ufffd broken"]
    assert last_lines(tmp_path / "none", 3) == []


@pytest.mark.parametrize(
    ("text", "cause", "lines"),
    [
        (
            "step 1\nTraceback (most recent call last):\n  File 'a.py', line 1, in f\n    g()\nValueError: no\nbye\n",
            "ValueError: no",
            ["Traceback (most recent call last):", "  File 'a.py', line 1, in f", "    g()", "ValueError: no"],
        ),
        (
            "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'a.py'\n[rank1]: a.b.OurError: why\nend",
            "a.b.OurError: why",
            ["Traceback (most recent call last):", "  File 'a.py'", "a.b.OurError: why"],
        ),
        (
            "Traceback (most recent call last):\n  File\nKeyError: 1\n\nDuring handling of the above exception, "
            "another exception occurred:\n\nTraceback (most recent call last):\n  File\nRuntimeError: two",
            "RuntimeError: two",
            ["Traceback (most recent call last):", "  File", "RuntimeError: two"],
        ),
        (
            "step 1\ntrainyard.steps.x: error: no such split\n",
            "no such split",
            ["step 1", "trainyard.steps.x: error: no such split"],
        ),
        ("step 1\nstep 2\n", None, ["step 1", "step 2"]),
        (
            "Traceback (most recent call last):\n  File 'a.py'",
            None,
            ["Traceback (most recent call last):", "  File 'a.py'"],
        ),
    ],
)
def test_the_error_in_a_log(tmp_path: Path, text: str, cause: str | None, lines: list[str]) -> None:
    log = tmp_path / "std_log.txt"
    log.write_text(text)

    error = last_error(log, 15, {})

    assert (error.cause, error.lines) == (cause, lines)


def test_an_error_names_data_as_its_user_does(tmp_path: Path) -> None:
    log = tmp_path / "std_log.txt"
    log.write_text("step: error: /run/INPUT_data/a.csv:2 and /run/INPUT_data_2/b.csv:3 differ\n")

    error = last_error(log, 15, {"/run/INPUT_data": "/home/me/a", "/run/INPUT_data_2": "/home/me/b"})

    assert error.cause == "/home/me/a/a.csv:2 and /home/me/b/b.csv:3 differ"


def test_a_long_traceback_ends_with_its_exception(tmp_path: Path) -> None:
    log = tmp_path / "std_log.txt"
    log.write_text("Traceback (most recent call last):\n" + "  frame\n" * 40 + f"ValueError: {'x' * 300}\n")

    error = last_error(log, 15, {})

    assert error.cause == f"ValueError: {'x' * 300}"[:199] + "…"
    assert (len(error.lines), error.lines[0]) == (15, "  frame")
