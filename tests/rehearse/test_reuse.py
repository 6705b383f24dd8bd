"""What is reused and what runs again: each thing that can change, changed by itself."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.cancellation import Cancellation
from trainyard.rehearse.digests import ContentDigests, write_json
from trainyard.rehearse.errors import RunError
from trainyard.rehearse.guardian import Guardian
from trainyard.rehearse.reuse import JobKey, StepCache
from trainyard.rehearse.run_store import clean

Edit = Callable[[Any], None]
# Ranks may do it at once, which cp does not allow.
COPY = "cat '${{inputs.data}}'/* > '${{outputs.copied}}/numbers.txt'"


def build(workspace: Any, **changes: Any) -> Path:
    """A job that copies data, and one that reads what it wrote."""
    copy = workspace.component(
        "copy",
        changes.get(
            "command", "cat '${{inputs.data}}'/* > '${{outputs.copied}}/numbers.txt' && echo '${{inputs.label}}'"
        ),
        inputs={"data": {"type": "uri_folder"}, "label": {"type": "string", "default": changes.get("label", "x")}},
        outputs={"copied": "uri_folder"},
        environment=changes.get("environment", {"image": "ubuntu", "conda_file": "../conda.yaml"}),
        is_deterministic=changes.get("is_deterministic", True),
        distribution=changes.get("distribution"),
        resources=changes.get("resources", {"instance_count": 1}),
    )
    use = workspace.component("use", "ls '${{inputs.copied}}'/", inputs={"copied": {"type": "uri_folder"}})
    return workspace.pipeline(
        {
            "copy": {
                "component": copy,
                "inputs": {"data": {"type": "uri_folder", "path": "../data"}},
                "environment_variables": changes.get("environment_variables", {"LEVEL": "1"}),
            },
            "use": {"component": use, "inputs": {"copied": "${{parent.jobs.copy.outputs.copied}}"}},
        },
        settings={"default_compute": "azureml:cpu", "force_rerun": changes.get("force_rerun", False)},
    )


@pytest.fixture
def prepared(workspace: Any) -> Any:
    (workspace.root / "data").mkdir()
    (workspace.root / "data" / "numbers.txt").write_text("1 2 3")
    (workspace.root / "conda.yaml").write_text("dependencies: [python=3.10]")
    return workspace


def test_an_unchanged_pipeline_starts_no_process(
    prepared: Any, output_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared.run(build(prepared))

    with monkeypatch.context() as forbidden:
        forbidden.setattr(Guardian, "start", lambda _: pytest.fail("there is nothing to guard"))
        second = prepared.run(build(prepared))

    assert {job.reused_from for job in second.jobs.values()} == {first.name}
    assert {job.reuse for job in second.jobs.values()} == {"nothing changed"}
    assert all(job.attempts == [] for job in second.jobs.values())
    assert second.jobs["copy"].command.startswith("cat '")
    ours, theirs = (output_of(record, "copy", "copied") / "numbers.txt" for record in (second, first))
    assert ours.read_text() == "1 2 3"
    assert ours.samefile(theirs)
    assert (second.folder / second.jobs["use"].logs[0]).read_text() == "numbers.txt\n"


CHANGES: dict[str, tuple[dict[str, Any], Edit, str]] = {
    "code": ({}, lambda w: (w.code / "new.py").write_text("x = 1"), "code (new.py is new)"),
    "command": ({"command": COPY}, lambda w: None, "command"),
    "parameter": ({"label": "y"}, lambda w: None, "input label"),
    "data": ({}, lambda w: (w.root / "data" / "numbers.txt").write_text("1 2 4"), "input data"),
    "new data file": ({}, lambda w: (w.root / "data" / "more.txt").write_text("5"), "input data"),
    "conda file": ({}, lambda w: (w.root / "conda.yaml").write_text("dependencies: [python=3.11]"), "environment"),
    "environment": ({"environment": "azureml:other:1"}, lambda w: None, "environment"),
    "environment variable": ({"environment_variables": {"LEVEL": "2"}}, lambda w: None, "environment_variables"),
    "nodes": ({"resources": {"instance_count": 2}}, lambda w: None, "distribution"),
    "shared memory": ({"resources": {"instance_count": 1, "shm_size": "8g"}}, lambda w: None, "resources"),
    "distribution": ({"distribution": {"type": "pytorch"}}, lambda w: None, "distribution"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_runs_the_job_again_and_is_named(prepared: Any, change: str) -> None:
    fields, edit, part = CHANGES[change]
    first = prepared.run(build(prepared))

    edit(prepared)
    second = prepared.run(build(prepared, **fields))

    assert second.status == "completed"
    assert second.jobs["copy"].reused_from is None
    assert second.jobs["copy"].reuse == f"changed since run {first.name}: {part}"
    assert second.jobs["use"].reused_from is None


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ({"is_deterministic": False}, {}, "is_deterministic: false"),
        ({"force_rerun": True}, {}, "force_rerun: true"),
        ({}, {"use_cache": False}, "--no-cache"),
    ],
)
def test_jobs_that_must_not_be_reused_run_again(prepared: Any, fields: Any, options: Any, reason: str) -> None:
    prepared.run(build(prepared, **fields))

    second = prepared.run(build(prepared, **fields), **options)

    assert second.jobs["copy"].reused_from is None
    assert second.jobs["copy"].reuse == reason


def test_a_job_that_reads_from_a_nondeterministic_one_runs_again(prepared: Any) -> None:
    prepared.run(build(prepared, is_deterministic=False))

    second = prepared.run(build(prepared, is_deterministic=False))

    assert "input copied" in second.jobs["use"].reuse


def undetermined(workspace: Any) -> Path:
    """A train job that gives something else each time, and one that copies it."""
    train = workspace.component(
        "train", "date +%s%N > '${{outputs.model}}/weights'", outputs={"model": "uri_folder"}, is_deterministic=False
    )
    read = workspace.component(
        "evaluate",
        "cp '${{inputs.model}}/weights' '${{outputs.result}}'",
        inputs={"model": {"type": "uri_folder"}},
        outputs={"result": "uri_file"},
    )
    jobs = {
        "train": {"component": train},
        "evaluate": {"component": read, "inputs": {"model": "${{parent.jobs.train.outputs.model}}"}},
    }
    return workspace.pipeline(jobs)


def evaluates_its_own_model(record: Any, output_of: Any) -> bool:
    weights = (output_of(record, "train", "model") / "weights").read_text()
    return bool(output_of(record, "evaluate", "result").read_text() == weights)


def test_a_run_of_the_same_name_in_another_folder_is_another_run(workspace: Any, output_of: Any) -> None:
    file = undetermined(workspace)

    first, second = (workspace.run(file, run_folder=workspace.root / parent / "run") for parent in ("x", "y"))

    assert (first.name, second.name) == ("run", "run")
    assert first.id != second.id
    assert second.jobs["evaluate"].reused_from is None
    assert evaluates_its_own_model(second, output_of)


def test_a_name_used_again_after_a_clean_is_another_run(workspace: Any, output_of: Any) -> None:
    file = undetermined(workspace)
    first = workspace.run(file, name="mine")
    workspace.run(file, name="other", only="evaluate")
    clean(workspace.runs_folder, [first])

    second = workspace.run(file, name="mine")

    assert second.jobs["evaluate"].reused_from is None
    assert evaluates_its_own_model(second, output_of)


def test_another_package_version_runs_the_job_again(prepared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepared.run(build(prepared))
    packages = prepared.root / "site-packages"
    (packages / "torch-99.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])

    second = prepared.run(build(prepared))

    assert second.jobs["copy"].reuse == f"changed since run {first.name}: the local Python and its packages"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.write_text("1 2 3 4"), "was altered (copied/numbers.txt)"),
        (lambda file: os.utime(file, ns=(0, 0)), "was altered (copied/numbers.txt)"),
        (lambda file: file.unlink(), "lacks copied/numbers.txt"),
        (lambda file: (file.parent / "stray").write_text(""), "has an additional file, copied/stray"),
    ],
)
def test_an_altered_result_is_not_reused(prepared: Any, output_of: Any, damage: Any, words: str) -> None:
    first = prepared.run(build(prepared))
    damage(output_of(first, "copy", "copied") / "numbers.txt")

    second = prepared.run(build(prepared))

    assert second.jobs["copy"].reuse == f"its result in run {first.name} {words}"
    assert second.status == "completed"


def test_a_result_outlives_the_run_that_made_it(prepared: Any) -> None:
    import shutil

    first = prepared.run(build(prepared))
    second = prepared.run(build(prepared))
    shutil.rmtree(first.folder)

    third = prepared.run(build(prepared))

    assert third.jobs["copy"].reused_from == second.name


def test_a_failed_job_is_not_reused(workspace: Any) -> None:
    file = workspace.one_job("exit 1")
    first = workspace.run(file)

    second = workspace.run(file)

    assert second.status == "failed"
    assert second.jobs["work"].reuse == (
        f"it did not complete in run {first.name}, completed with warnings, or its result is gone"
    )


def test_a_damaged_cache_only_costs_time(prepared: Any) -> None:
    prepared.run(build(prepared))
    for file in (prepared.root / ".trainyard" / "cache").rglob("*.json"):
        file.write_text("{")

    record = prepared.run(build(prepared))

    assert record.status == "completed"
    assert record.jobs["copy"].reuse == "it has not run from this file before"


def test_results_are_copied_where_links_are_impossible(prepared: Any, output_of: Any, monkeypatch: Any) -> None:
    first = prepared.run(build(prepared))

    def no_links(*args: Any, **kwargs: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_links)
    second = prepared.run(build(prepared))

    ours, theirs = (output_of(record, "copy", "copied") / "numbers.txt" for record in (second, first))
    assert second.jobs["copy"].reused_from == first.name
    assert ours.read_text() == theirs.read_text()
    assert not ours.samefile(theirs)


def test_large_files_are_read_once(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"0" * 100_000)
    an_hour_ago = time.time() - 3600
    os.utime(big, (an_hour_ago, an_hour_ago))
    index = tmp_path / "index.json"
    digests = ContentDigests(index)

    digest = digests.of_file(big)
    digests.save()

    (name,) = json.loads(index.read_text())
    assert name == str(big)
    big.write_bytes(b"1" * 100_000)
    os.utime(big, (an_hour_ago, an_hour_ago))
    assert ContentDigests(index).of_file(big) == digest, "by path, size, time and inode it is the same file"
    other = tmp_path / "other"
    other.write_bytes(b"1" * 100_000)
    os.utime(other, (an_hour_ago, an_hour_ago))
    other.replace(big)
    assert ContentDigests(index).of_file(big) != digest


def test_what_was_just_written_is_not_remembered(tmp_path: Path) -> None:
    """It could change again within a tick of the clock."""
    (tmp_path / "big").write_bytes(b"0" * 100_000)
    digests = ContentDigests(tmp_path / "index.json")

    digests.of_file(tmp_path / "big")
    digests.save()

    assert not (tmp_path / "index.json").exists()


def test_an_unknown_key_has_no_result(tmp_path: Path) -> None:
    cache = StepCache(tmp_path)

    assert cache.find(JobKey("0" * 64, {}), tmp_path) == (None, None)


def test_threads_that_write_the_same_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    writers = ThreadPoolExecutor(8)

    written = [writers.submit(write_json, tmp_path / "entry.json", {"n": n, "long": "x" * 5000}) for n in range(400)]

    assert [writing.result() for writing in written] == [None] * 400
    assert json.loads((tmp_path / "entry.json").read_text())["n"] in range(400)
    assert (tmp_path / "entry.json").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert sorted(file.name for file in tmp_path.iterdir()) == ["entry.json", "plain"]


def test_reading_inputs_for_long_shows_progress(tmp_path: Path) -> None:
    large = tmp_path / "large.bin"
    large.write_bytes(bytes(3 << 20))
    notes: list[str] = []
    ContentDigests(tmp_path / "index.json", notes.append, bytes_between_notes=1 << 20).of_path(tmp_path)
    assert len(notes) == 3
    assert notes[-1].startswith("reading inputs to find out what has changed since the last run: ")
    assert notes[-1].endswith(f"now {large}")


def test_reading_inputs_ends_when_the_run_is_canceled(tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(3 << 20))
    cancellation = Cancellation()
    cancellation.request("SIGINT received")
    with pytest.raises(RunError, match=r"^SIGINT received$"):
        ContentDigests(tmp_path / "index.json", cancellation=cancellation).of_path(tmp_path)


def test_many_equal_jobs_are_all_reused(workspace: Any) -> None:
    component = workspace.component("worker", "true", outputs={"out": "uri_folder"})
    file = workspace.pipeline({f"job_{number}": {"component": component} for number in range(8)})
    first = workspace.run(file)

    again = workspace.run(file)

    assert {job.reused_from for job in again.jobs.values()} == {first.name}


def test_a_damaged_cache_costs_a_run_and_nothing_else(workspace: Any) -> None:
    file = workspace.one_job("true")
    workspace.run(file)
    entries = [entry for entry in (workspace.runs_folder.parent / "cache").rglob("*.json") if entry.is_file()]
    assert entries
    for entry in entries:
        entry.write_bytes(bytes(entry.stat().st_size))

    assert workspace.run(file).jobs["work"].reused_from is None
    assert workspace.run(file).jobs["work"].reused_from is not None


def test_a_pipeline_of_the_same_name_in_another_file_is_another_one(workspace: Any) -> None:
    workspace.run(workspace.one_job("true"))
    (workspace.root / "elsewhere").mkdir()
    other = workspace.one_job("echo other").rename(workspace.root / "elsewhere" / "demo.yaml")

    assert workspace.run(other).jobs["work"].reuse == "it has not run from this file before"
