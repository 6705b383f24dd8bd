"""`.trainyard/runs` may come with a repository: a record there names only what is in the folder of its run."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_records import RECORD

from trainyard.rehearse.run_store import read_record
from trainyard.report.live import LivePage
from trainyard.report.run_report import write_report
from trainyard.settings.run_record import InvalidRunRecord, read_run_record

CommandLine = Callable[..., Any]
MUTATIONS = 600
SECRET = "the secret of somebody else"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of runs of a working folder, with one good run."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".trainyard" / "runs"
    write(folder / "good", RECORD)
    for job, record in RECORD["jobs"].items():
        for path in (*record["outputs"].values(), f"jobs/{job}/user_logs"):
            (folder / "good" / path).mkdir(parents=True)
        (folder / "good" / record["logs"][0]).write_text("a line\n")
    (folder / "good" / "jobs/train/outputs/metrics/metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    return folder


def write(run: Path, record: object) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text(json.dumps(record))
    return run


def changed(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(RECORD), **fields}


def with_job(**fields: Any) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    record["jobs"]["train"].update(fields)
    return record


@pytest.mark.parametrize(
    "record",
    [
        changed(id="/tmp"),
        changed(id="../../../precious"),
        changed(name="../../x"),
        changed(name="x\u001b[2J"),
        changed(outputs={"model": "/etc"}),
        changed(jobs={"../../../../precious": {}}),
        changed(jobs={"a": {"depends_on": ["b"]}, "b": {"depends_on": ["a"]}}),
        changed(started="0001-01-01T00:00:00+23:59"),
        changed(duration_s=float("nan")),
        changed(pipeline="\ud800"),
        changed(max_processes=10**400),
        changed(inputs={"a": json.loads("[" * 60 + "]" * 60)}),
        with_job(logs=["/etc/passwd"]),
        with_job(logs=["../../../secret.txt"]),
        with_job(outputs={"model": "../../../../.."}),
        with_job(outputs={"model": "jobs/\0"}),
        with_job(nodes=True),
    ],
    ids=lambda record: str(record)[-60:],
)
def test_a_record_that_names_something_else_is_refused(runs: Path, trainyard: CommandLine, record: object) -> None:
    precious = runs.parents[1] / "precious"
    precious.mkdir()
    write(runs / "bad", record)
    with pytest.raises(InvalidRunRecord):
        read_run_record(runs / "bad")
    listed = trainyard("runs", "list")
    assert listed.exit_code == 0
    assert "good" in listed.stdout
    assert "bad" in listed.stderr, "one bad record is named, and no others are left out"
    assert trainyard("runs", "clean", "--yes", "--keep", "0").exit_code == 0
    assert precious.exists()
    assert (runs / "bad").exists()
    assert not (runs / "good").exists()


def test_a_log_that_is_a_link_to_another_file_is_not_shown(runs: Path, trainyard: CommandLine) -> None:
    (runs.parents[1] / "secret.txt").write_text(SECRET)
    log = runs / "good" / "jobs/train/user_logs/std_log_process_0.txt"
    log.unlink()
    log.symlink_to(runs.parents[1] / "secret.txt")
    for arguments in (("logs", "good"), ("logs", "good", "--job", "train"), ("show", "good"), ("list", "--json")):
        outcome = trainyard("runs", *arguments)
        assert SECRET not in outcome.stdout + outcome.stderr
    assert SECRET not in write_report(runs / "good").read_text()
    assert SECRET.encode() not in LivePage(runs / "good", lambda: read_record(runs / "good")).page()


@pytest.mark.parametrize("name", ["metrics.jsonl", "settings.json", "evaluation.json"])
def test_a_result_that_is_a_link_to_another_file_is_not_shown(runs: Path, name: str) -> None:
    document = {"format": "trainyard.settings/1", "step": SECRET, "settings": {SECRET: 1}, "world_size": 1}
    document |= {"micro_batch_size": 1, "accumulation_steps": 1, "global_batch_size": 1}
    (runs.parents[1] / "secret").write_text(json.dumps({**document, "step": 1, SECRET: 1}))
    file = runs / "good" / "jobs/train/outputs/metrics" / name
    file.unlink(missing_ok=True)
    file.symlink_to(runs.parents[1] / "secret")
    assert SECRET not in write_report(runs / "good").read_text()


def test_what_mlflow_logged_is_read_from_a_store_only(runs: Path) -> None:
    elsewhere = runs.parents[1] / "elsewhere"
    (elsewhere / "params").mkdir(parents=True)
    (elsewhere / "params" / "key").write_text(SECRET)
    write(runs / "good", with_job(tracking="../../../elsewhere"))
    assert SECRET not in write_report(runs / "good").read_text()
    store = runs.parent / "mlruns" / "1" / "good"
    (store / "params").mkdir(parents=True)
    (store / "params" / "key").symlink_to(elsewhere / "params" / "key")
    (store / "params" / "mine").write_text("a parameter of the run")
    write(runs / "good", with_job(tracking="../../mlruns/1/good"))
    page = write_report(runs / "good").read_text()
    assert "a parameter of the run" in page
    assert SECRET not in page


def test_clean_removes_no_folder_that_a_link_leads_to(runs: Path, trainyard: CommandLine, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", RECORD)
    (runs / "linked").symlink_to(tmp_path / "elsewhere")
    assert trainyard("runs", "clean", "--yes", "--keep", "0").exit_code == 0
    assert (tmp_path / "elsewhere" / "run.json").exists()


def test_a_record_without_an_id_leaves_the_runs_of_others(runs: Path, trainyard: CommandLine) -> None:
    store = runs.parent / "mlruns"
    (store / "kept").mkdir(parents=True)
    write(runs / "good", changed(id="", experiment="digits"))
    trainyard("runs", "clean", "--yes", "--keep", "0")
    assert (store / "kept").exists()


def test_pipes_and_devices_in_place_of_files_are_not_waited_for(runs: Path, trainyard: CommandLine) -> None:
    for name in ("pipe", "device", "lock"):
        write(runs / name, changed(name=name, status="running"))
    (runs / "pipe" / "run.json").unlink()
    os.mkfifo(runs / "pipe" / "run.json")
    (runs / "device" / "run.json").unlink()
    (runs / "device" / "run.json").symlink_to("/dev/zero")
    os.mkfifo(runs / "lock" / "run.lock")
    log = runs / "good" / "jobs/train/user_logs/std_log_process_0.txt"
    log.unlink()
    os.mkfifo(log)
    for arguments in (("list",), ("logs", "good"), ("show", "lock"), ("show", "pipe")):
        trainyard("runs", *arguments)
    write_report(runs / "good")


# Any record ---------------------------------------------------------------------------------------------------------

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 10**30, float("inf"), "", "x", "\0", "\ud800", "/etc/passwd", "../..", [], {}),
    *([1], ["x"], [[]], [{}], {"": ""}, {"x": None}, {"x": []}, [None], "9999-12-31T23:59:59-23:59", "2026", "💥" * 9),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document, the document itself last."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, each in below for place in places(each, (*path, key))] + [path]


def mutated(record: Any, chance: random.Random) -> Any:
    """A record with one to three values replaced, removed, or under another key."""
    record = copy.deepcopy(record)
    for _ in range(chance.randint(1, 3)):
        *into, key = chance.choice([place for place in places(record) if place])
        owner = record
        for name in into:
            owner = owner[name]
        kind = chance.random()
        if kind < 0.7:
            owner[key] = copy.deepcopy(chance.choice(STRANGE))
        elif kind < 0.85 or isinstance(owner, list):
            del owner[key]
        else:
            owner[str(chance.choice(STRANGE))] = owner.pop(key)
    return record


def test_any_record_is_shown_or_refused_in_one_line(runs: Path, trainyard: CommandLine) -> None:
    chance = random.Random(20261123)
    shown = 0
    for _ in range(MUTATIONS):
        write(runs / "bad", mutated(RECORD, chance))
        try:
            read_run_record(runs / "bad")
        except InvalidRunRecord:
            continue
        shown += 1
        for arguments in (("show", "bad"), ("show", "bad", "--json"), ("logs", "bad"), ("compare", "good", "bad")):
            assert trainyard("runs", *arguments).exit_code in (0, 1, 2)
        write_report(runs / "bad")
        LivePage(runs / "bad", lambda: read_record(runs / "bad")).page()
    assert 50 < shown < MUTATIONS - 50, "some are readable, and some are not"
    assert trainyard("runs", "list").exit_code == 0
