"""Values on their way into a job: bindings, types, paths, --set, and the command they end in."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.errors import UsageError
from trainyard.rehearse.local_data import read_mltable
from trainyard.spec.diagnostic import SpecError

ECHO = "echo a=${{inputs.a}} $[[ b=${{inputs.b}} ]] end"


def shown_by(record: Any) -> str:
    return str((record.folder / record.jobs["work"].logs[0]).read_text().strip())


def with_inputs(workspace: Any, a: Any, b: Any = None, **bound: Any) -> Path:
    """A job that echoes its inputs a and (optional) b; pipeline inputs of the same names and types, bound to them."""
    ports = {"a": a, **({"b": b} if b else {})}
    inner = {name: {"type": port["type"], "optional": name == "b"} for name, port in ports.items()}
    component = workspace.component("worker", ECHO if b else "echo a=${{inputs.a}}", inputs=inner)
    bindings = {name: f"${{{{parent.inputs.{name}}}}}" for name in ports}
    return workspace.pipeline({"work": {"component": component, "inputs": {**bindings, **bound}}}, inputs=ports)


@pytest.mark.parametrize(
    ("port", "text"),
    [
        ({"type": "boolean", "default": True}, "True"),
        ({"type": "number", "default": 0.00001}, "1e-05"),
        ({"type": "number", "default": 3}, "3"),
        ({"type": "integer", "default": 12}, "12"),
        ({"type": "string", "default": "two words"}, "two words"),
    ],
)
def test_literals_are_written_as_python_writes_them(workspace: Any, port: Any, text: str) -> None:
    record = workspace.run(with_inputs(workspace, port))

    assert shown_by(record) == f"a={text}"
    assert record.jobs["work"].command == f"echo a={text}"


def test_nothing_is_quoted(workspace: Any) -> None:
    record = workspace.run(with_inputs(workspace, {"type": "string", "default": "$((40 + 2)); echo more"}))

    assert shown_by(record) == "a=42\nmore"


def test_an_optional_part_is_dropped_when_its_input_is_not_given(workspace: Any) -> None:
    a, b = {"type": "integer", "default": 1}, {"type": "integer", "optional": True}
    file = with_inputs(workspace, a, b)

    assert shown_by(workspace.run(file)) == "a=1 end"
    assert shown_by(workspace.run(file, overrides={"inputs.b": "2"})) == "a=1 b=2 end"


def test_bindings_stand_within_texts_and_on_other_jobs_inputs(workspace: Any) -> None:
    component = workspace.component("worker", "echo a=${{inputs.a}}", inputs={"a": {"type": "string"}})
    jobs = {
        "other": {"component": component, "inputs": {"a": "run-${{parent.inputs.n}}"}},
        "work": {"component": component, "inputs": {"a": "${{parent.jobs.other.inputs.a}}"}},
    }

    record = workspace.run(workspace.pipeline(jobs, inputs={"n": {"type": "integer", "default": 7}}))

    assert shown_by(record) == "a=run-7"


def test_counts_may_be_bound_to_inputs(workspace: Any) -> None:
    component = workspace.component("worker", "echo $RANK", distribution={"type": "pytorch"})
    distribution = {"type": "pytorch", "process_count_per_instance": "${{parent.inputs.ranks}}"}
    jobs = {"work": {"component": component, "distribution": distribution}}
    file = workspace.pipeline(jobs, inputs={"ranks": {"type": "integer", "default": 2}})

    assert workspace.run(file).jobs["work"].processes_per_node == 2
    assert workspace.run(file, overrides={"inputs.ranks": "1"}).jobs["work"].processes_per_node == 1
    with pytest.raises(UsageError, match="is the number 0; expected a whole number of at least 1"):
        workspace.run(file, overrides={"inputs.ranks": "0"})


@pytest.mark.parametrize(
    ("port", "text", "shown"),
    [
        ({"type": "integer", "default": 1}, "5", "5"),
        ({"type": "number", "default": 1}, "1e-5", "1e-05"),
        ({"type": "number", "default": 1}, "4", "4"),
        ({"type": "boolean", "default": False}, "TRUE", "True"),
        ({"type": "string", "default": "x", "enum": ["x", "y"]}, "y", "y"),
    ],
)
def test_set_takes_what_the_type_allows(workspace: Any, port: Any, text: str, shown: str) -> None:
    record = workspace.run(with_inputs(workspace, port), overrides={"inputs.a": text})

    assert shown_by(record) == f"a={shown}"


@pytest.mark.parametrize(
    ("port", "text", "message"),
    [
        ({"type": "integer", "default": 1}, "two", "'a' is of type integer: the text 'two' is not a whole number"),
        ({"type": "number", "default": 1}, "fast", "'a' is of type number: the text 'fast' is not a number"),
        (
            {"type": "boolean", "default": True},
            "maybe",
            "'a' is of type boolean: the text 'maybe' is neither true nor false. Write true or false.",
        ),
        ({"type": "integer", "default": 4, "min": 2}, "1", "'a' is 1, below the min of 2"),
        ({"type": "number", "default": 0.1, "max": 0.5}, "0.6", "'a' is 0.6, above the max of 0.5"),
        ({"type": "string", "default": "x", "enum": ["x", "y"]}, "z", "'a' is 'z'; expected one of x, y"),
    ],
)
def test_set_refuses_what_the_type_does_not_allow(workspace: Any, port: Any, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        workspace.run(with_inputs(workspace, port), overrides={"inputs.a": text})

    assert str(caught.value) == f"--set inputs.a={text}: {message}"
    assert caught.value.exit_code == 2
    assert not workspace.runs_folder.exists()


def with_bare_input(workspace: Any, value: Any, port_type: str, **port: Any) -> Path:
    """A pipeline with `a: value`, which declares no type, and a job that echoes it from a port that does."""
    component = workspace.component(
        "worker", "echo a=${{inputs.a}}", inputs={"a": {"type": port_type, **port}, "b": {"type": "string"}}
    )
    bound = {"a": "${{parent.inputs.a}}", "b": "part of ${{parent.inputs.b}}"}
    return workspace.pipeline({"work": {"component": component, "inputs": bound}}, inputs={"a": value, "b": 1})


@pytest.mark.parametrize(
    ("value", "port_type", "text", "shown"),
    [
        (1, "number", "0.5", "0.5"),
        (0, "number", "1e-3", "0.001"),
        (1, "integer", "7", "7"),
        (1, "string", "one", "one"),
        (1, "string", "007", "007"),
        (True, "string", "maybe", "maybe"),
        ("true", "boolean", "FALSE", "False"),
    ],
)
def test_an_input_without_a_type_takes_what_its_ports_take(
    workspace: Any, value: Any, port_type: str, text: str, shown: str
) -> None:
    file = with_bare_input(workspace, value, port_type)

    assert shown_by(workspace.run(file, overrides={"inputs.a": text, "inputs.b": "0.5"})) == f"a={shown}"


@pytest.mark.parametrize(
    ("value", "port", "text", "message"),
    [
        (1, {"port_type": "integer"}, "three", "'a' is of type integer: the text 'three' is not a whole number"),
        ("1", {"port_type": "integer"}, "four", "'a' is of type integer: the text 'four' is not a whole number"),
        (0, {"port_type": "number", "max": 1}, "1.5", "'a' is 1.5, above the max of 1"),
    ],
)
def test_an_input_without_a_type_refuses_what_its_ports_refuse(
    workspace: Any, value: Any, port: Any, text: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        workspace.run(with_bare_input(workspace, value, **port), overrides={"inputs.a": text})

    assert str(caught.value) == f"--set inputs.a={text}: {message}"
    assert caught.value.exit_code == 2


def test_data_replaces_an_input_without_a_type_as_the_error_says(workspace: Any) -> None:
    (workspace.root / "data").mkdir()
    component = workspace.component("worker", "ls '${{inputs.raw}}'", inputs={"raw": {"type": "uri_folder"}})
    jobs = {"work": {"component": component, "inputs": {"raw": "${{parent.inputs.bare}}"}}}
    file = workspace.pipeline(jobs, inputs={"bare": "azureml:mydata:1"})
    with pytest.raises(SpecError) as caught:
        workspace.run(file)
    assert caught.value.diagnostics[0].hint == "give local data in its place: --set inputs.bare.path=./data"

    record = workspace.run(file, overrides={"inputs.bare.path": str(workspace.root / "data")})
    assert record.status == "completed"


def test_a_count_without_a_type_is_still_a_number(workspace: Any) -> None:
    component = workspace.component("worker", "true", distribution={"type": "pytorch"})
    distribution = {"type": "pytorch", "process_count_per_instance": "${{parent.inputs.ranks}}"}
    file = workspace.pipeline({"work": {"component": component, "distribution": distribution}}, inputs={"ranks": 2})

    assert workspace.run(file, overrides={"inputs.ranks": "1"}).jobs["work"].processes_per_node == 1
    for text in ("two", "0.5"):
        message = f"--set inputs.ranks={text}: 'process_count_per_instance' of the job 'work' is the text '{text}'; "
        with pytest.raises(UsageError, match=message + "expected a whole number of at least 1"):
            workspace.run(file, overrides={"inputs.ranks": text})


def test_bounds_and_choices_may_be_written_as_texts(workspace: Any) -> None:
    bounded = with_inputs(workspace, {"type": "number", "default": 0.1, "min": "1e-4"})
    with pytest.raises(UsageError, match=r"'a' is 1e-5, below the min of 0\.0001"):
        workspace.run(bounded, overrides={"inputs.a": "1e-5"})

    chosen = with_inputs(workspace, {"type": "number", "default": 0.1, "enum": ["1e-4", 0.1]})
    assert shown_by(workspace.run(chosen, overrides={"inputs.a": "0.0001"})) == "a=0.0001"


def test_set_reaches_the_input_of_one_job(workspace: Any) -> None:
    file = with_inputs(workspace, {"type": "integer", "default": 1})

    assert shown_by(workspace.run(file, overrides={"jobs.work.inputs.a": "9"})) == "a=9"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("inputs.aa", "the pipeline has no input 'aa'. Did you mean 'a'?"),
        ("jobs.wrk.inputs.a", "unknown job 'wrk'. Did you mean 'work'?"),
        ("jobs.work.inputs.lr", "the job 'work' has no input 'lr'. Known here: 'a'."),
        ("jobs.work.input.a", "names no input. Did you mean 'jobs.work.inputs.a'?"),
        (
            "epochs",
            "names no input. Known here: 'inputs.a', 'jobs.work.inputs.a'. "
            "`trainyard render --set`, or --profile here, sets the keys of a profile.",
        ),
    ],
)
def test_set_of_an_unknown_input_suggests_a_known_one(workspace: Any, key: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        workspace.run(with_inputs(workspace, {"type": "integer", "default": 1}), overrides={key: "1"})

    assert str(caught.value) == f"--set {key}: {message}"


def with_data(workspace: Any, path: str, kind: str = "uri_folder") -> Path:
    component = workspace.component("worker", "ls ${{inputs.data}}", inputs={"data": {"type": kind}})
    return workspace.pipeline(
        {"work": {"component": component, "inputs": {"data": "${{parent.inputs.data}}"}}},
        inputs={"data": {"type": kind, "path": path}},
    )


def test_a_path_is_relative_to_the_yaml_and_on_the_command_line_to_the_shell(
    workspace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("data", "elsewhere/data"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / name.replace("/", "-")).touch()
    monkeypatch.chdir(tmp_path / "elsewhere")
    file = with_data(workspace, "../data")

    assert "data" in (record := workspace.run(file)).jobs["work"].inputs
    assert record.jobs["work"].inputs["data"] == str(tmp_path / "data")
    record = workspace.run(file, overrides={"inputs.data": "data"})
    assert record.jobs["work"].inputs["data"] == str(tmp_path / "elsewhere" / "data")
    record = workspace.run(file, overrides={"jobs.work.inputs.data": "data"})
    assert record.jobs["work"].inputs["data"] == str(tmp_path / "elsewhere" / "data")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("azureml:mnist:1", "only Azure ML can read"),
        ("azureml://datastores/x/paths/y", "is in a datastore of Azure ML, and not in "),
        ("https://example.org/x", "is a folder, and folders have no listing over HTTP"),
        ("wasbs://container@account/x", "is a folder"),
    ],
)
def test_remote_data_is_refused_with_a_fix(workspace: Any, path: str, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        workspace.run(with_data(workspace, path))

    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message.startswith(f"job 'work': input 'data' is {path}, which {why}")
    assert diagnostic.hint == "give local data in its place: --set inputs.data.path=./data"
    assert path in diagnostic.span.file.read_text().splitlines()[diagnostic.span.line - 1]


@pytest.mark.parametrize(
    ("path", "kind", "problem"),
    [
        ("../src/note_times.py", "uri_folder", "note_times.py is a file; the input takes a folder"),
        ("../src", "uri_file", "src is a folder; the input takes a file"),
    ],
)
def test_data_of_the_wrong_kind_is_named(workspace: Any, path: str, kind: str, problem: str) -> None:
    with pytest.raises(SpecError, match=f"input 'data': /.*{problem}") as caught:
        workspace.run(with_data(workspace, path, kind))

    (diagnostic,) = caught.value.diagnostics
    assert path in diagnostic.span.file.read_text().splitlines()[diagnostic.span.line - 1]


def test_a_file_in_place_of_its_folder_names_the_folder(workspace: Any) -> None:
    with pytest.raises(SpecError) as caught:
        workspace.run(with_data(workspace, "../src/note_times.py", "uri_folder"))

    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.hint == "give the folder that holds it: ../src"


def test_a_model_by_its_name_on_the_hub_is_told_how_to_get_it(workspace: Any) -> None:
    with pytest.raises(UsageError) as caught:
        workspace.run(
            with_data(workspace, "../src", "custom_model"), overrides={"inputs.data": "HuggingFaceTB/SmolLM-135M"}
        )

    assert (
        "HuggingFaceTB/SmolLM-135M looks like a name on the Hugging Face Hub: `trainyard model fetch "
        "HuggingFaceTB/SmolLM-135M` or `hf download HuggingFaceTB/SmolLM-135M --local-dir models/smollm-135m`, then "
        "--set inputs.data.path=models/smollm-135m"
    ) in str(caught.value)


def test_missing_data_on_the_command_line_is_a_usage_error(workspace: Any) -> None:
    with pytest.raises(UsageError, match=r"no such folder: .*/nowhere; correct the path"):
        workspace.run(with_data(workspace, "../src"), overrides={"inputs.data": "nowhere"})


def test_an_input_without_a_value_says_how_to_give_one(workspace: Any) -> None:
    with pytest.raises(SpecError) as caught:
        workspace.run(with_inputs(workspace, {"type": "integer"}))

    assert "input 'a'" in caught.value.diagnostics[0].message
    assert shown_by(workspace.run(with_inputs(workspace, {"type": "integer"}), overrides={"inputs.a": "3"})) == "a=3"


def test_max_processes_below_one_is_a_usage_error(workspace: Any) -> None:
    with pytest.raises(UsageError, match="--max-processes 0: at least one process is needed"):
        workspace.run(with_inputs(workspace, {"type": "integer", "default": 1}), max_processes=0)


def test_an_optional_input_outside_optional_parts_must_be_given(workspace: Any) -> None:
    command = "echo ${{inputs.b}}"
    file = workspace.one_job(command, inputs={"b": {"type": "integer", "optional": True}})

    with pytest.raises(SpecError, match="optional input 'b' has no value"):
        workspace.run(file)


@pytest.mark.parametrize(
    ("command", "text", "found"),
    [
        ("echo '${{inputs.a}}'", "it's", "'"),
        ('echo "it\'s ${{inputs.a}}"', "5$", "$"),
        ('echo "${{inputs.a}}"', 'so "said"', '"'),
        ('echo \\" $[[ "${{inputs.a}}" ]]', "`id`", "`"),
    ],
)
def test_a_strict_run_refuses_a_value_that_breaks_its_quotes(
    workspace: Any, command: str, text: str, found: str
) -> None:
    file = workspace.one_job(command, inputs={"a": {"type": "string", "default": text}})

    with pytest.raises(SpecError) as caught:
        workspace.run(file, strict=True)

    quote = "'" if found == "'" else '"'
    message = f"input 'a' of worker contains {found}, which would break the {quote} around it in the command: {text}"
    assert message in str(caught.value)
    assert caught.value.diagnostics[0].hint == "give a value without it"
    assert not workspace.runs_folder.exists()


@pytest.mark.parametrize(("command", "text"), [('echo "${{inputs.a}}"', "it's"), ("echo '${{inputs.a}}'", '"5$" `\\')])
def test_a_value_may_hold_what_its_quotes_allow(workspace: Any, command: str, text: str) -> None:
    record = workspace.run(workspace.one_job(command, inputs={"a": {"type": "string", "default": text}}))

    assert shown_by(record) == text


def test_a_strict_run_refuses_a_file_whose_name_breaks_its_quotes_and_takes_any_folder(workspace: Any) -> None:
    folder = workspace.root / "ada's"
    folder.mkdir()
    (folder / "ada's.txt").write_text("text\n")

    def reads(kind: str, path: Path) -> Path:
        component = workspace.component("worker", "ls '${{inputs.data}}'", inputs={"data": {"type": kind}})
        data = {"type": kind, "path": str(path)}
        file: Path = workspace.pipeline({"work": {"component": component, "inputs": {"data": data}}})
        return file

    assert shown_by(workspace.run(reads("uri_folder", folder), strict=True)) == "ada's.txt"
    with pytest.raises(SpecError, match=r"input 'data' of worker contains ', .*ada's") as caught:
        workspace.run(reads("uri_file", folder / "ada's.txt"), strict=True)
    assert caught.value.diagnostics[0].hint == "give a file without it in its name"

    writes = workspace.one_job("touch '${{outputs.out}}/x'", outputs={"out": "uri_folder"})
    assert workspace.run(writes, run_folder=folder / "run", strict=True).status == "completed"


def test_an_integer_bound_to_files_is_wrong(workspace: Any) -> None:
    component = workspace.component("worker", "echo ${{inputs.a}}", inputs={"a": {"type": "integer"}})
    writer = workspace.component("writer", "true", outputs={"out": "uri_folder"})
    jobs = {
        "first": {"component": writer},
        "work": {"component": component, "inputs": {"a": "${{parent.jobs.first.outputs.out}}"}},
    }

    with pytest.raises(SpecError, match="'a' is of type integer and cannot be bound to files"):
        workspace.run(workspace.pipeline(jobs))


@pytest.mark.parametrize("place", ["the job's input", "the pipeline's input", "another path with --set"])
def test_data_is_what_its_input_declares_where_the_component_says_otherwise(workspace: Any, place: str) -> None:
    """Azure ML mounts data by the type in the job: a file reaches a port for folders as a file."""
    (workspace.root / "table.csv").write_text("a,b\n")
    table = {"type": "uri_file", "path": "../gone.csv" if "--set" in place else "../table.csv"}
    component = workspace.component("worker", "cat ${{inputs.data}}", inputs={"data": {"type": "uri_folder"}})
    if place == "the pipeline's input":
        jobs = {"work": {"component": component, "inputs": {"data": "${{parent.inputs.table}}"}}}
        file = workspace.pipeline(jobs, inputs={"table": table})
    else:
        file = workspace.pipeline({"work": {"component": component, "inputs": {"data": table}}})
    given = {"jobs.work.inputs.data.path": str(workspace.root / "table.csv")} if "--set" in place else {}

    record = workspace.run(file, overrides=given)

    assert (record.folder / record.jobs["work"].logs[0]).read_text() == "a,b\n"


def test_what_azure_ml_fills_in_is_refused_with_the_key_that_replaces_it(workspace: Any) -> None:
    component = workspace.component("worker", "true", inputs={"data": {"type": "uri_folder"}})
    data = {"type": "uri_folder", "path": "azureml://datastores/store/paths/${{name}}"}
    file = workspace.pipeline({"work": {"component": component, "inputs": {"data": data}}})

    with pytest.raises(SpecError) as raised:
        workspace.run(file)

    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.message == "${{name}} is known to Azure ML alone, which fills it in"
    assert diagnostic.hint == "Give another in its place with --set jobs.work.inputs.data.path=./data."


def test_a_folder_of_data_that_cannot_be_read_is_named() -> None:
    """And no file MLTable in it, which there may not be."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        folder = Path(parent, "data")
        folder.mkdir(mode=0)
        os.seteuid(user or 65534)
        try:
            with pytest.raises(PermissionError) as refused:
                read_mltable(folder)
        finally:
            os.seteuid(user)
    assert Path(refused.value.filename) == folder
