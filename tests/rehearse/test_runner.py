"""Whole pipelines of real processes: order, parallel jobs, failures, what is skipped, and what the record says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from trainyard.rehearse.errors import RunError, UsageError
from trainyard.rehearse.guardian import processes_beneath
from trainyard.resources import schema_file
from trainyard.spec.diagnostic import SpecError

TWO_PROCESSES = {"type": "pytorch", "process_count_per_instance": 2}


def validate(run_folder: Path) -> None:
    schema = json.loads(schema_file("run").read_text())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema).validate(json.loads((run_folder / "run.json").read_text()))


def test_jobs_run_in_the_order_of_their_bindings_and_pass_files(workspace: Any, output_of: Any) -> None:
    write = workspace.component(
        "write",
        "echo '${{inputs.text}}' > '${{outputs.note}}/note.txt'",
        inputs={"text": {"type": "string"}},
        outputs={"note": "uri_folder"},
    )
    append = workspace.component(
        "append",
        "cat '${{inputs.before}}/note.txt' > '${{outputs.after}}' && echo and more >> '${{outputs.after}}'",
        inputs={"before": {"type": "uri_folder"}},
        outputs={"after": "uri_file"},
    )
    file = workspace.pipeline(
        {
            "second": {
                "component": append,
                "inputs": {"before": "${{parent.jobs.first.outputs.note}}"},
                "outputs": {"after": "${{parent.outputs.result}}"},
            },
            "first": {"component": write, "inputs": {"text": "${{parent.inputs.name}} wrote this"}},
        },
        inputs={"name": {"type": "string", "default": "ada"}},
        outputs={"result": {"type": "uri_file"}},
    )

    record = workspace.run(file)

    assert record.status == "completed"
    assert list(record.jobs) == ["first", "second"]
    assert record.jobs["second"].depends_on == ["first"]
    assert (record.folder / record.outputs["result"]).read_text() == "ada wrote this\nand more\n"
    assert record.jobs["first"].attempts[0].exit_codes == {"0": 0}
    assert record.inputs == {"name": "ada"}
    validate(record.folder)


def test_titles_of_jobs_are_kept_where_they_are_not_ambiguous(workspace: Any) -> None:
    uses = workspace.component("say", "echo hello")
    titles = {"first": "Say hello", "second": "Say hello", "third": "Say goodbye"}
    jobs = {name: {"component": uses, "display_name": title} for name, title in titles.items()}
    record = workspace.run(workspace.pipeline(jobs, display_name="Greetings"))

    assert record.display_name == "Greetings"
    assert [job.title for job in record.jobs.values()] == ["first", "second", "Say goodbye"]


def test_independent_jobs_overlap(workspace: Any, output_of: Any) -> None:
    note = workspace.component("note", "python note_times.py '${{outputs.times}}'", outputs={"times": "uri_folder"})

    record = workspace.run(workspace.pipeline({"one": {"component": note}, "two": {"component": note}}))

    times = [(output_of(record, job, "times") / "times.txt").read_text().split() for job in ("one", "two")]
    (start_one, end_one), (start_two, end_two) = [(float(start), float(end)) for start, end in times]
    assert start_one < end_two
    assert start_two < end_one


def test_jobs_with_more_processes_than_processors_run_alone(workspace: Any, output_of: Any) -> None:
    distribution = {"type": "pytorch", "process_count_per_instance": max(2, len(os.sched_getaffinity(0)))}
    note = workspace.component(
        "note", "python note_times.py '${{outputs.times}}'", outputs={"times": "uri_folder"}, distribution=distribution
    )

    record = workspace.run(workspace.pipeline({"one": {"component": note}, "two": {"component": note}}))

    times = [(output_of(record, job, "times") / "times.txt").read_text().split() for job in ("one", "two")]
    (_, end_one), (start_two, _) = sorted((float(start), float(end)) for start, end in times)
    assert end_one <= start_two


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("raise", 1, "RuntimeError: the third batch has no labels (rank 1 ended with exit code 1)"),
        ("kill", -9, "rank 1 was killed by SIGKILL (out of memory?)"),
    ],
)
def test_a_failing_rank_ends_the_others_and_is_reported(workspace: Any, how: str, code: int, words: str) -> None:
    file = workspace.one_job(f"python fail_one_rank.py 1 {how}", distribution=TWO_PROCESSES)

    record = workspace.run(file)

    job = record.jobs["work"]
    assert (record.status, job.status) == ("failed", "failed")
    assert (job.reason, job.failed_rank) == (words, 1)
    assert job.attempts[0].exit_codes == {"0": -15, "1": code}
    assert job.attempts[0].reason == words
    assert record.reason == f"work failed: {words}"
    assert processes_beneath(record.folder) == []
    if how == "raise":
        assert job.error_lines is not None
        assert job.error_lines[-1] == "RuntimeError: the third batch has no labels"
        assert workspace.shown.count("RuntimeError: the third batch has no labels") == 1
        assert str(record.folder / "jobs/work/user_logs/std_log_process_1.txt") in workspace.shown
    validate(record.folder)


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(workspace: Any) -> None:
    # Rank 1 fails only when rank 0 is sure to ignore SIGTERM, however slowly the machine starts it.
    stubborn = f"import os, pathlib, signal, sys, time\nready = pathlib.Path({str(workspace.root / 'ready')!r})\n"
    stubborn += "signal.signal(15, signal.SIG_IGN)\n"
    stubborn += "if os.environ['RANK'] == '0':\n    ready.touch()\n    time.sleep(60)\n"
    stubborn += "while not ready.exists():\n    time.sleep(0.01)\nsys.exit(3)"
    (workspace.code / "stubborn.py").write_text(stubborn)

    record = workspace.run(workspace.one_job("python stubborn.py", distribution=TWO_PROCESSES), grace_seconds=0.5)

    assert record.jobs["work"].attempts[0].exit_codes == {"0": -9, "1": 3}
    assert record.jobs["work"].failed_rank == 1


# Rank 1 writes first, and both end as soon as both have written, rank 0 last: mostly they are seen to end at once.
FAIL_TOGETHER = """
import os, pathlib, sys, time

here = pathlib.Path(sys.argv[1])

def wait_for(name):
    while not (here / name).exists():
        time.sleep(0.002)

def fail():
    print("rank", os.environ["RANK"], "fails", flush=True)

if os.environ["RANK"] == "1":
    fail()
    (here / "first").touch()
    wait_for("second")
    (here / "third").touch()
else:
    wait_for("first")
    time.sleep(0.05)
    fail()
    (here / "second").touch()
    wait_for("third")
os._exit(1)
"""


def test_of_ranks_that_fail_together_the_first_to_write_is_reported(workspace: Any) -> None:
    (workspace.code / "together.py").write_text(FAIL_TOGETHER)

    record = workspace.run(workspace.one_job(f"python together.py '{workspace.root}'", distribution=TWO_PROCESSES))

    assert record.jobs["work"].failed_rank == 1


def failing_pipeline(workspace: Any, **settings: Any) -> Path:
    fail = workspace.component("fail", "sleep 0.5; exit 4", outputs={"nothing": "uri_folder"})
    use = workspace.component("use", "true", inputs={"it": {"type": "uri_folder"}})
    slow = workspace.component("slow", "exec sleep ${{inputs.seconds}}", inputs={"seconds": {"type": "integer"}})
    return workspace.pipeline(
        {
            "fails": {"component": fail},
            "uses": {"component": use, "inputs": {"it": "${{parent.jobs.fails.outputs.nothing}}"}},
            "other": {"component": slow, "inputs": {"seconds": "${{parent.inputs.seconds}}"}},
        },
        inputs={"seconds": {"type": "integer", "default": 1}},
        settings={"default_compute": "azureml:cpu", **settings},
    )


def test_a_failed_job_cancels_what_runs_and_skips_what_waits(workspace: Any) -> None:
    record = workspace.run(failing_pipeline(workspace), overrides={"inputs.seconds": "60"})

    assert {name: job.status for name, job in record.jobs.items()} == {
        "fails": "failed",
        "uses": "skipped",
        "other": "canceled",
    }
    assert record.jobs["other"].reason == "job fails failed"
    assert record.jobs["fails"].reason == "its process ended with exit code 4"
    assert record.status == "failed"


def test_with_continue_on_step_failure_the_others_finish(workspace: Any) -> None:
    record = workspace.run(failing_pipeline(workspace, continue_on_step_failure=True))

    assert {name: job.status for name, job in record.jobs.items()} == {
        "fails": "failed",
        "uses": "skipped",
        "other": "completed",
    }
    assert record.jobs["uses"].reason == "it reads from fails, which has no result"
    assert record.status == "failed"


def test_a_job_that_does_not_write_its_file_has_failed_if_another_reads_it(workspace: Any) -> None:
    write = workspace.component("write", "true", outputs={"model": "uri_file"})
    read = workspace.component("read", "cat ${{inputs.model}}", inputs={"model": {"type": "uri_file"}})
    jobs = {"write": {"component": write}}
    not_written = "it exited with 0, but did not write its output model"

    alone = workspace.run(workspace.pipeline(jobs))
    assert (alone.status, alone.jobs["write"].warnings) == ("completed", [not_written])
    assert workspace.run(workspace.pipeline(jobs), strict=True).jobs["write"].reason == not_written

    jobs["read"] = {"component": read, "inputs": {"model": "${{parent.jobs.write.outputs.model}}"}}
    assert workspace.run(workspace.pipeline(jobs)).jobs["write"].reason == not_written


def test_a_job_that_leaves_an_output_empty_is_warned_of_and_reused_with_the_warning(workspace: Any) -> None:
    """Folders alone are as good as nothing: a store of blobs has none."""
    outputs = {"model": "mlflow_model", "logs": "uri_folder", "weights": "custom_model"}
    command = "mkdir '${{outputs.model}}/folder'; echo 1 > '${{outputs.logs}}/a'; true '${{outputs.weights}}'"
    varying = workspace.component("vary", command, outputs=outputs, is_deterministic=False)
    steady = workspace.component("write", command, outputs=outputs)
    file = workspace.pipeline({"write": {"component": steady}, "vary": {"component": varying}})
    empty = ["its output 'model' is empty", "its output 'weights' is empty"]

    first, second = (workspace.run(file).jobs for _ in range(2))
    assert [(first[name].status, first[name].warnings) for name in ("write", "vary")] == [("completed", empty)] * 2
    assert second["write"].reused_from is not None
    assert second["write"].warnings == second["vary"].warnings == empty


def test_what_a_job_leaves_running_ends_with_it(workspace: Any) -> None:
    record = workspace.run(workspace.one_job("setsid sleep 60 & setsid nohup sleep 60 & true"))

    assert record.status == "completed"
    assert processes_beneath(record.folder) == []


def test_what_a_shell_prints_in_the_background_is_not_lost(workspace: Any) -> None:
    """In the manner of a component of public tests, `echo Hello World & echo … &`, which nothing waits for."""
    record = workspace.run(workspace.one_job("for number in $(seq 40); do (sleep 0.02; echo $number) & done"))

    assert record.status == "completed"
    printed = (record.folder / record.jobs["work"].logs[0]).read_text().split()
    assert sorted(map(int, printed)) == list(range(1, 41))


def test_max_processes_reduces_the_count_with_a_note(workspace: Any, decisions: Any) -> None:
    file = workspace.one_job(
        "echo $WORLD_SIZE",
        distribution={"type": "pytorch", "process_count_per_instance": 8},
        resources={"instance_count": 2},
    )

    record = workspace.run(file, max_processes=3)

    job = record.jobs["work"]
    assert (job.nodes, job.processes_per_node) == (2, 1)
    assert record.notes == ["work: 16 processes (2 x 8) were reduced to 2 (2 x 1) by --max-processes 3"]
    assert record.notes[0] in workspace.shown
    assert [(record.folder / log).read_text() for log in job.logs] == ["2\n", "2\n"]
    assert f"processes: {record.notes[0].removeprefix('work: ')}\n" in decisions(record, "work")


def test_max_processes_below_the_nodes_reduces_nodes(workspace: Any) -> None:
    record = workspace.run(workspace.one_job("true", resources={"instance_count": 4}), max_processes=2)

    assert (record.jobs["work"].nodes, record.jobs["work"].processes_per_node) == (2, 1)


def test_only_one_job_with_the_outputs_of_an_earlier_run(workspace: Any) -> None:
    file = two_steps(workspace)
    first = workspace.run(file)

    record = workspace.run(file, only="second")

    assert record.jobs["first"].reused_from == first.name
    assert (record.jobs["second"].status, record.jobs["second"].reused_from) == ("completed", None)
    assert record.jobs["second"].reuse == "it was asked for by name"


def test_a_job_that_is_left_out_may_read_what_is_not_here(workspace: Any) -> None:
    write = workspace.component(
        "write",
        "ls '${{inputs.data}}'/ > '${{outputs.note}}/note'",
        inputs={"data": {"type": "uri_folder"}},
        outputs={"note": "uri_folder"},
    )
    read = workspace.component("read", "cat '${{inputs.note}}/note'", inputs={"note": {"type": "uri_folder"}})
    jobs = {
        "first": {"component": write, "inputs": {"data": "${{parent.inputs.data}}"}},
        "second": {"component": read, "inputs": {"note": "${{parent.jobs.first.outputs.note}}"}},
    }
    file = workspace.pipeline(jobs, inputs={"data": {"type": "uri_folder", "path": "azureml:images:1"}})
    workspace.run(file, overrides={"inputs.data": str(workspace.code)})

    assert workspace.run(file, only="second").status == "completed"
    with pytest.raises(SpecError, match="only Azure ML can read"):
        workspace.run(file)


def test_from_a_job_runs_it_and_what_follows(workspace: Any) -> None:
    file = two_steps(workspace)
    workspace.run(file)

    record = workspace.run(file, from_job="first")

    assert record.jobs["first"].attempts
    assert record.jobs["beside"].status == "skipped"
    assert record.jobs["second"].status == "completed"


def test_left_out_jobs_are_skipped_in_their_order(workspace: Any) -> None:
    noop = workspace.component("noop", "true")
    names = ["e", "b", "d", "a", "c"]
    file = workspace.pipeline({name: {"component": noop} for name in names})

    record = workspace.run(file, only="a")

    lines = [line.split()[1] for line in workspace.shown.splitlines() if " skipped: " in line]
    assert lines == [name for name in record.jobs if name != "a"]


@pytest.mark.parametrize(
    ("processors", "distribution", "nodes", "shape", "note"),
    [
        # Three on each of two nodes would fit, but not share what eight share evenly.
        (6, {"type": "pytorch", "process_count_per_instance": 8}, 2, (2, 2), "4 (2 x 2), since this machine has 6 pro"),
        (1, {"type": "mpi", "process_count_per_instance": 2}, 3, (3, 1), "3 (3 x 1), since this machine has 1 proc"),
        (1, {"type": "pytorch", "process_count_per_instance": 2}, 2, (2, 2), None),
        (1, {"type": "tensorflow", "worker_count": 4, "parameter_server_count": 2}, 2, (2, 3), None),
    ],
)
def test_a_job_has_no_more_processes_than_the_machine_has_processors_but_four(
    workspace: Any,
    decisions: Any,
    monkeypatch: pytest.MonkeyPatch,
    processors: int,
    distribution: dict[str, Any],
    nodes: int,
    shape: tuple[int, int],
    note: str | None,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(processors)), raising=False)
    file = workspace.one_job("true", distribution=distribution, resources={"instance_count": nodes})

    record = workspace.run(file)

    job = record.jobs["work"]
    assert (job.nodes, job.processes_per_node) == shape
    whole = nodes * int(distribution.get("process_count_per_instance", 0))
    assert len(record.notes) == (note is not None)
    for text in record.notes:
        assert text.startswith(f"work: {whole} processes ({nodes} x {whole // nodes}) were reduced to {note}")
        assert text.endswith(f": --max-processes {whole} runs all")
        assert f"processes: {text.removeprefix('work: ')}\n" in decisions(record, "work")


def test_only_without_an_earlier_run_says_what_to_do(workspace: Any) -> None:
    with pytest.raises(UsageError, match="no earlier run of demo has completed first"):
        workspace.run(two_steps(workspace), only="second")
    assert not list(workspace.runs_folder.glob("*"))


def test_an_unknown_job_suggests_the_closest(workspace: Any) -> None:
    with pytest.raises(UsageError, match=r"--only secnd: unknown job\. Did you mean 'second'"):
        workspace.run(two_steps(workspace), only="secnd")
    with pytest.raises(UsageError, match="cannot be used together"):
        workspace.run(two_steps(workspace), only="second", from_job="first")


def two_steps(workspace: Any) -> Path:
    write = workspace.component("write", "echo 1 > '${{outputs.note}}/note'", outputs={"note": "uri_folder"})
    read = workspace.component("read", "cat '${{inputs.note}}/note'", inputs={"note": {"type": "uri_folder"}})
    return workspace.pipeline(
        {
            "first": {"component": write},
            "second": {"component": read, "inputs": {"note": "${{parent.jobs.first.outputs.note}}"}},
            "beside": {"component": write},
        }
    )


@pytest.mark.skipif(shutil.which("ray") is not None, reason="this Python has ray")
def test_a_distribution_that_does_not_run_here_is_refused_before_anything_starts(workspace: Any) -> None:
    file = workspace.one_job("true", distribution={"type": "ray"})

    with pytest.raises(SpecError) as caught:
        workspace.run(file)

    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == f"job 'work': distribution 'ray' needs ray, which {sys.executable} does not have"
    assert '"distribution": {' in diagnostic.span.file.read_text().splitlines()[diagnostic.span.line - 1]
    assert not workspace.runs_folder.exists()


def test_an_invalid_or_taken_name_is_refused(workspace: Any) -> None:
    file = workspace.one_job("true")
    workspace.run(file, name="mine")

    with pytest.raises(UsageError, match="a run of this name already exists"):
        workspace.run(file, name="mine")
    with pytest.raises(UsageError, match="use at most 100 letters, digits"):
        workspace.run(file, name="../mine")


def test_runs_at_the_same_second_get_different_names(workspace: Any) -> None:
    file = workspace.one_job("true")

    names = {workspace.run(file).name for _ in range(3)}

    assert len(names) == 3


def test_a_given_run_folder(workspace: Any, tmp_path: Path) -> None:
    file = workspace.one_job("true")

    record = workspace.run(file, run_folder=tmp_path / "here")

    assert (record.folder, record.name) == (tmp_path / "here", "here")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not touch")
    with pytest.raises(UsageError, match="is not an empty folder"):
        workspace.run(file, run_folder=tmp_path / "full")


def test_a_folder_that_cannot_be_written_is_reported_in_one_message(workspace: Any) -> None:
    (workspace.root / ".trainyard").write_text("a file where a folder should be")

    with pytest.raises(RunError, match=r"cannot be written \((Not a directory|File exists)\).*--run-dir"):
        workspace.run(workspace.one_job("true"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    """A real file system of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"only root may mount a small disk: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_job_that_fills_the_disk_fails_and_the_disk_is_named(workspace: Any, small_disk: Path) -> None:
    file = workspace.one_job("head -c 1000000 /dev/zero > '${{outputs.big}}/zeros'", outputs={"big": "uri_folder"})

    with pytest.raises(RunError, match=r"cannot be written \(No space left on device\).*free some space"):
        workspace.run(file, run_folder=small_disk / "run")

    record = json.loads((small_disk / "run" / "run.json").read_text())
    assert record["status"] != "completed"
    assert record["jobs"]["work"]["status"] != "completed"
    assert not list((small_disk / "run").glob(".run.json*"))


def test_a_snapshot_that_does_not_fit_on_the_disk(workspace: Any, small_disk: Path) -> None:
    (workspace.code / "weights.bin").write_bytes(os.urandom(2_000_000))

    record = workspace.run(workspace.one_job("true"), run_folder=small_disk / "run")

    assert record.status == "failed"
    assert "cannot be written (No space left on device)" in record.jobs["work"].reason
    assert record.jobs["work"].reason in workspace.shown


def test_jobs_of_a_pipeline_within_run_under_dotted_names(workspace: Any) -> None:
    write = workspace.component(
        "write",
        "echo ${{inputs.n}} > ${{outputs.out}}/n",
        inputs={"n": {"type": "integer"}},
        outputs={"out": "uri_folder"},
    )
    read = workspace.component("read", "cat ${{inputs.data}}/n", inputs={"data": {"type": "uri_folder"}})
    part = {
        "type": "pipeline",
        "name": "part",
        "inputs": {"size": {"type": "integer"}},
        "outputs": {"result": {"type": "uri_folder"}},
        "jobs": {
            "write": {
                "component": write,
                "inputs": {"n": "${{parent.inputs.size}}"},
                "outputs": {"out": "${{parent.outputs.result}}"},
            }
        },
    }
    (workspace.root / "components" / "part.yaml").write_text(json.dumps(part))
    jobs = {
        "read": {"component": read, "inputs": {"data": "${{parent.jobs.make.outputs.result}}"}},
        "make": {
            "type": "pipeline",
            "component": "../components/part.yaml",
            "inputs": {"size": "${{parent.inputs.size}}"},
        },
    }
    file = workspace.pipeline(jobs, inputs={"size": 1})

    record = workspace.run(file, overrides={"inputs.size": "3"})
    assert list(record.jobs) == ["make.write", "read"]
    assert record.jobs["read"].depends_on == ["make.write"]
    assert (record.folder / record.jobs["read"].logs[0]).read_text() == "3\n"

    again = workspace.run(file, overrides={"jobs.make.write.inputs.n": "4"}, only="make.write")
    assert (again.folder / "jobs" / "make.write" / "outputs" / "out" / "n").read_text() == "4\n"


@pytest.mark.parametrize(
    ("environment", "advice"),
    [
        (
            {"image": "x", "conda_file": "../conda.yaml"},
            "conda.yaml:3 asks for no-such-module: install it for",
        ),
        ({"image": "x", "conda_file": "../other.yaml"}, "other.yaml does not list it: add it there, and install it"),
        (
            {"image": "x", "conda_file": {"dependencies": ["python", {"pip": ["no-such-module>=1"]}]}},
            "worker.yaml:13 asks for no-such-module: install it for",
        ),
        (
            {"image": "x", "description": "no_such_module logs", "conda_file": {"dependencies": ["python"]}},
            "worker.yaml does not list it: add it there, and install it",
        ),
        (
            "azureml:some:1",
            "and check that the environment azureml:some:1 has it",
        ),
    ],
)
def test_a_missing_module_is_the_reason_with_the_file_to_change(workspace: Any, environment: Any, advice: str) -> None:
    (workspace.root / "conda.yaml").write_text("dependencies:\n  - pip:\n      - no-such_module==1.0\n")
    (workspace.root / "other.yaml").write_text("dependencies:\n  - another\n")

    record = workspace.run(workspace.one_job("python -c 'import no_such_module'", environment=environment))

    reason = record.jobs["work"].reason
    start = "ModuleNotFoundError: No module named 'no_such_module' (its process ended with exit code 1); "
    assert reason.startswith(start)
    assert advice in reason


def test_what_a_step_warns_of_is_shown_and_kept(workspace: Any) -> None:
    once = "echo warning: once"
    command = f"echo 'warning: not resuming from step-00000002'; echo all warning: signs; {once}; {once}"
    record = workspace.run(workspace.one_job(command))

    assert record.jobs["work"].warnings == ["not resuming from step-00000002", "once"]
    assert "work: warning: not resuming from step-00000002" in workspace.shown
    assert workspace.shown.count("warning: once") == 1


def test_a_missing_module_is_traced_back_by_the_name_of_its_package(workspace: Any) -> None:
    (workspace.root / "conda.yaml").write_text("dependencies:\n  - pip:\n      - opencv-python-headless==4.1\n")
    environment = {"image": "x", "conda_file": "../conda.yaml"}

    reason = workspace.run(workspace.one_job("python -c 'import cv2'", environment=environment)).jobs["work"].reason

    assert "conda.yaml:3 asks for opencv-python-headless: install it (package opencv-python" in reason


def test_a_misspelt_module_of_the_code_is_recognized(workspace: Any) -> None:
    (workspace.root / "src" / "model.py").write_text("")
    reason = workspace.run(workspace.one_job("python -c 'import modle'")).jobs["work"].reason
    assert reason.endswith("; did you mean 'model', which is in the code?")


def test_a_program_that_is_missing_is_the_reason(workspace: Any) -> None:
    record = workspace.run(workspace.one_job("echo first; Rscript-of-nobody train.R"))

    expected = "Rscript-of-nobody: command not found: install it here (its process ended with exit code 127)"
    assert record.jobs["work"].reason == expected


def test_a_variable_that_only_the_shell_has_is_the_reason(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY_OF_THE_SHELL", "secret")

    record = workspace.run(workspace.one_job("python -c 'import os; os.environ[\"API_KEY_OF_THE_SHELL\"]'"))

    assert record.jobs["work"].reason == (
        "KeyError: 'API_KEY_OF_THE_SHELL' (its process ended with exit code 1); jobs do not see your shell's "
        "API_KEY_OF_THE_SHELL: give it in the job's environment_variables"
    )


def test_a_module_that_an_installed_package_lacks_names_the_version_of_the_package(workspace: Any) -> None:
    reason = workspace.run(workspace.one_job("python -c 'import click.old'")).jobs["work"].reason

    known = f"; click {version('click')} is installed, which has no click.old: install the version that has it"
    assert reason.endswith(known)
