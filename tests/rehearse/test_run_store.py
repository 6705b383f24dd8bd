"""Runs after they have ended: listed, found, read, cleaned, resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.display import Display
from trainyard.rehearse.errors import RunError, UsageError
from trainyard.rehearse.run_options import RunOptions
from trainyard.rehearse.run_store import clean, find_run, hold_lock, list_runs, log_files, read_record, runs_to_clean
from trainyard.rehearse.runner import resume_run
from trainyard.settings.run_record import JobRecord, RunRecord, RunRecordWriter, read_run_record


@pytest.fixture
def three_runs(workspace: Any) -> list[Any]:
    file = workspace.one_job(
        "echo $RANK > '${{outputs.out}}/'r$RANK; echo said $RANK",
        outputs={"out": "uri_folder"},
        distribution={"type": "pytorch", "process_count_per_instance": 2},
    )
    return [workspace.run(file, name=name) for name in ("one", "two", "three")]


def test_runs_are_listed_newest_first(workspace: Any, three_runs: list[Any]) -> None:
    (workspace.runs_folder / "stray").mkdir()
    (workspace.runs_folder / "broken").mkdir()
    (workspace.runs_folder / "broken" / "run.json").write_text("{")

    assert list_runs(workspace.runs_folder) == list(reversed(three_runs))


def test_a_run_is_found_by_name_by_folder_or_as_the_newest(workspace: Any, three_runs: list[Any]) -> None:
    runs = workspace.runs_folder

    assert find_run(runs, "two").name == "two"
    assert find_run(runs, str(runs / "one")).name == "one"
    assert find_run(runs, None).name == "three"
    with pytest.raises(UsageError, match=r"unknown run 'thre'\. Did you mean 'three'"):
        find_run(runs, "thre")
    with pytest.raises(UsageError, match="no runs yet"):
        find_run(workspace.root / "empty", None)


def test_logs_by_job_and_rank(workspace: Any, three_runs: list[Any]) -> None:
    record = three_runs[0]

    assert [log.read_text() for log in log_files(record)] == ["said 0\n", "said 1\n"]
    assert [log.name for log in log_files(record, "work", 1)] == ["std_log_process_1.txt"]
    with pytest.raises(UsageError, match=r"has no job 'wrk'\. Did you mean 'work'"):
        log_files(record, "wrk")
    with pytest.raises(UsageError, match="has no rank 2; its ranks are 0 to 1"):
        log_files(record, "work", 2)
    with pytest.raises(UsageError, match="run one has no rank 7; its ranks are 0 to 1"):
        log_files(record, rank=7)


def test_a_change_of_one_job_encodes_that_job_alone(tmp_path: Path) -> None:
    record = RunRecord("run", "pipeline", folder=tmp_path, jobs={f"job_{n}": JobRecord(f"job_{n}") for n in range(100)})
    writer = RunRecordWriter(record)
    writer.write()

    for name, job in record.jobs.items():
        job.status = "running"
        writer.write(name)
        job.status = "completed"
        writer.write(name)
        assert read_run_record(tmp_path) == record

    record.jobs["job_3"].reason = "changed without saying so"
    writer.write("job_5")
    assert read_run_record(tmp_path).jobs["job_3"].reason is None


def test_a_running_job_is_written_as_it_is_whoever_changed(tmp_path: Path) -> None:
    jobs = {"slow": JobRecord("slow", status="running"), "quick": JobRecord("quick")}
    record = RunRecord("run", "pipeline", folder=tmp_path, jobs=jobs)
    writer = RunRecordWriter(record)
    writer.write()

    jobs["slow"].warnings.append("no checkpoint")
    jobs["quick"].status = "skipped"
    writer.write("quick")

    assert read_run_record(tmp_path) == record


def test_clean_keeps_the_newest_and_what_they_reuse(workspace: Any, three_runs: list[Any], output_of: Any) -> None:
    chosen = runs_to_clean(workspace.runs_folder, keep=1)
    assert [record.name for record in chosen] == ["two", "one"]

    clean(workspace.runs_folder, chosen)

    assert [record.name for record in list_runs(workspace.runs_folder)] == ["three"]
    assert (output_of(three_runs[2], "work", "out") / "r0").read_text() == "0\n"
    mlflow_runs = {run.parent.name for run in (workspace.root / ".trainyard/mlruns").glob("*/*/meta.yaml")}
    # A reused job has no MLflow run of its own.
    assert mlflow_runs == {three_runs[2].id}


def test_clean_counts_only_bytes_that_come_free(workspace: Any) -> None:
    file = workspace.one_job(
        "head -c 5000 /dev/zero > '${{outputs.out}}/zeros'", outputs={"out": "uri_folder"}, code=None
    )
    first, second = workspace.run(file), workspace.run(file)

    assert clean(workspace.runs_folder, [first]) < 5000
    assert clean(workspace.runs_folder, [second]) > 5000


def test_clean_by_age_and_never_a_run_under_way(workspace: Any, three_runs: list[Any]) -> None:
    old = workspace.runs_folder / "one" / "run.json"
    old.write_text(json.dumps({**json.loads(old.read_text()), "started": "2020-01-01T00:00:00+00:00"}))

    assert [record.name for record in runs_to_clean(workspace.runs_folder, older_than_days=30)] == ["one"]
    with hold_lock(workspace.runs_folder / "one"):
        assert runs_to_clean(workspace.runs_folder, older_than_days=30) == []
        with pytest.raises(UsageError, match="another process is working"), hold_lock(workspace.runs_folder / "one"):
            pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("[", "invalid JSON"),
        ('{"format": "trainyard.run/9"}', "unknown format 'trainyard.run/9'"),
        ('{"format": "trainyard.run/1", "jobs": {}}', "invalid trainyard.run/1: run lacks 'name', 'pipeline'"),
        ("[]", "unknown format None"),
    ],
)
def test_an_invalid_record_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)

    with pytest.raises(UsageError, match=message):
        read_record(tmp_path)


def resume(workspace: Any, record: Any, file: Path) -> Any:
    return resume_run(record, workspace.load(file), RunOptions(workspace.runs_folder), Display(quiet=True))


def test_a_failed_run_is_resumed_where_it_was(workspace: Any, output_of: Any) -> None:
    first = workspace.component(
        "first",
        "echo ${{inputs.n}} > '${{outputs.out}}/n'",
        inputs={"n": {"type": "integer", "default": 1}},
        outputs={"out": "uri_folder"},
    )
    train = workspace.component(
        "train",
        "cat '${{inputs.data}}/n' && python resumable.py '${{outputs.out}}'",
        inputs={"data": {"type": "uri_folder"}},
        outputs={"out": "uri_folder"},
    )
    last = workspace.component("last", "cat '${{inputs.data}}/result'", inputs={"data": {"type": "uri_folder"}})
    file = workspace.pipeline(
        {
            "prepare": {"component": first},
            "train": {"component": train, "inputs": {"data": "${{parent.jobs.prepare.outputs.out}}"}},
            "evaluate": {"component": last, "inputs": {"data": "${{parent.jobs.train.outputs.out}}"}},
        }
    )
    failed = workspace.run(file, overrides={"jobs.prepare.inputs.n": "4"})
    assert {name: job.status for name, job in failed.jobs.items()} == {
        "prepare": "completed",
        "train": "failed",
        "evaluate": "skipped",
    }

    resumed = resume(workspace, read_record(failed.folder), file)

    assert resumed.status == "completed"
    assert resumed.folder == failed.folder
    assert resumed.id == failed.id
    assert resumed.duration_s > failed.duration_s
    assert len(resumed.jobs["prepare"].attempts) == 1
    assert [attempt.exit_codes for attempt in resumed.jobs["train"].attempts] == [{"0": 1}, {"0": 0}]
    assert (output_of(resumed, "train", "out") / "result").read_text() == "continued from step 5"
    assert (resumed.folder / resumed.jobs["train"].logs[0]).read_text().splitlines() == ["4", "preempted", "4"]
    assert read_record(failed.folder) == resumed


def test_what_cannot_be_resumed(workspace: Any) -> None:
    file = workspace.one_job("true")
    record = workspace.run(file)

    with pytest.raises(UsageError, match="is already completed"):
        resume(workspace, record, file)
    failed = workspace.run(workspace.one_job("false"))
    other = workspace.pipeline({"another": {"component": "../components/worker.yaml"}})
    with pytest.raises(UsageError, match=r"cannot be resumed: .* has other jobs now"):
        resume(workspace, failed, other)


def test_a_resumed_run_finds_data_that_was_named_relative_to_another_folder(
    workspace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "data").mkdir(parents=True)
    component = workspace.component(
        "worker",
        "python resumable.py '${{outputs.out}}'",
        inputs={"data": {"type": "uri_folder"}},
        outputs={"out": "uri_folder"},
    )
    jobs = {"work": {"component": component, "inputs": {"data": {"type": "uri_folder", "path": "../src"}}}}
    file = workspace.pipeline(jobs)
    monkeypatch.chdir(tmp_path / "elsewhere")
    failed = workspace.run(file, overrides={"jobs.work.inputs.data": "data"})
    monkeypatch.chdir(tmp_path)

    resumed = resume(workspace, failed, file)

    assert resumed.status == "completed"
    assert resumed.jobs["work"].inputs["data"] == str(tmp_path / "elsewhere" / "data")


CONTINUES = "python resumable.py '${{outputs.out}}'"


def interrupted(record: Any, *finished: str) -> Any:
    """The record of this run as a runner leaves it that is killed when only these jobs are over."""
    file = record.folder / "run.json"
    document = json.loads(file.read_text())
    untouched = {"status": "waiting", "attempts": [], "identity": None, "reused_from": None, "logs": []}
    for name, job in document["jobs"].items():
        job.update({} if name in finished else untouched)
    file.write_text(json.dumps({**document, "status": "running", "duration_s": None}))
    return read_record(record.folder)


def test_a_job_edited_between_its_attempts_is_not_reused_by_others(workspace: Any, output_of: Any) -> None:
    read = workspace.component("read", "cat '${{inputs.data}}/result'", inputs={"data": {"type": "uri_folder"}})

    def pipeline(command: str) -> Path:
        jobs = {
            "work": {"component": workspace.component("worker", command, outputs={"out": "uri_folder"})},
            "read": {"component": read, "inputs": {"data": "${{parent.jobs.work.outputs.out}}"}},
        }
        return workspace.pipeline(jobs)

    edited = f"{CONTINUES} || {CONTINUES}"
    failed = workspace.run(pipeline(CONTINUES))
    resumed = resume(workspace, read_record(failed.folder), pipeline(edited))
    assert (output_of(resumed, "work", "out") / "result").read_text() == "continued from step 5"

    fresh = workspace.run(pipeline(edited))

    assert {name: job.reused_from for name, job in fresh.jobs.items()} == {"work": None, "read": None}
    assert resumed.jobs["work"].identity == f"{resumed.jobs['work'].cache_key}@{resumed.id}"


def test_a_job_resumed_as_it_was_is_reused_by_others(workspace: Any) -> None:
    file = workspace.one_job(CONTINUES, outputs={"out": "uri_folder"})
    resumed = resume(workspace, workspace.run(file), file)

    again = workspace.run(file)
    assert again.jobs["work"].reused_from == resumed.name, workspace.shown


@pytest.mark.parametrize("option", ["only", "from_job"])
def test_a_run_killed_before_reused_results_were_linked_is_resumed(workspace: Any, output_of: Any, option: str) -> None:
    write = workspace.component("write", "echo 1 > '${{outputs.out}}/n'", outputs={"out": "uri_folder"})
    read = workspace.component("read", "cat '${{inputs.data}}/n'", inputs={"data": {"type": "uri_folder"}})
    file = workspace.pipeline(
        {
            "first": {"component": write},
            "second": {"component": read, "inputs": {"data": "${{parent.jobs.first.outputs.out}}"}},
            "beside": {"component": write},
        }
    )
    whole = workspace.run(file)
    killed = interrupted(workspace.run(file, **{option: "second"}))
    (output_of(killed, "first", "out") / "n").unlink()
    (output_of(killed, "first", "out") / "part").touch()

    resumed = resume(workspace, killed, file)

    assert {name: job.status for name, job in resumed.jobs.items()} == {
        "first": "completed",
        "second": "completed",
        "beside": "skipped",
    }
    assert resumed.jobs["first"].reused_from == whole.name
    assert [path.name for path in output_of(resumed, "first", "out").iterdir()] == ["n"]


def test_a_reused_result_that_is_gone_on_resume_is_named(workspace: Any) -> None:
    write = workspace.component("write", "echo 1 > '${{outputs.out}}/n'", outputs={"out": "uri_folder"})
    read = workspace.component("read", "cat '${{inputs.data}}/n'", inputs={"data": {"type": "uri_folder"}})
    second = {"component": read, "inputs": {"data": "${{parent.jobs.first.outputs.out}}"}}
    file = workspace.pipeline({"first": {"component": write}, "second": second})
    whole = workspace.run(file)
    killed = interrupted(workspace.run(file, only="second"))
    clean(workspace.runs_folder, [whole])

    with pytest.raises(UsageError, match="no earlier run of demo has completed first"):
        resume(workspace, killed, file)


def test_a_job_is_not_started_on_a_part_of_an_earlier_result(workspace: Any, output_of: Any) -> None:
    file = workspace.one_job("ls '${{outputs.out}}' > '${{outputs.out}}/seen'", outputs={"out": "uri_folder"})
    killed = interrupted(workspace.run(file))
    (output_of(killed, "work", "out") / "part").touch()
    shutil.rmtree(workspace.root / ".trainyard" / "cache")

    resumed = resume(workspace, killed, file)

    assert (output_of(resumed, "work", "out") / "seen").read_text() == "seen\n"


def test_a_failure_under_a_resumed_run_is_recorded(workspace: Any) -> None:
    file = workspace.one_job(CONTINUES, outputs={"out": "uri_folder"})
    failed = workspace.run(file)
    store = workspace.root / ".trainyard" / "mlruns"
    shutil.rmtree(store)
    store.write_text("a file where a folder should be")

    with pytest.raises(RunError, match="mlruns: cannot be written"):
        resume(workspace, failed, file)

    record = json.loads((failed.folder / "run.json").read_text())
    assert (record["status"], record["jobs"]["work"]["status"]) == ("failed", "skipped")
    assert "mlruns: cannot be written" in record["reason"]
    assert record["duration_s"] >= failed.duration_s
