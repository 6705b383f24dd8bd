"""Where a rehearsal could be kinder than the cluster: jobs that would pass here and fail there, or the reverse."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from azure.ai.ml import load_job
from azure.ai.ml.entities import Command, PipelineJob
from azure.ai.ml.exceptions import UserErrorException, ValidationException
from marshmallow import ValidationError

from trainyard.rehearse.guardian import processes_beneath


@dataclass
class Project:
    """The current folder, with a job, and `trainyard run` in it."""

    folder: Path
    trainyard: Callable[..., Any]
    runs: int = 0

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def run(self, job: Mapping[str, Any], *options: str) -> Any:
        """Run a command job; `record` is its record then."""
        document = {"type": "command", "environment": "azureml:any:1", "compute": "azureml:cpu", **job}
        return self.run_document(document, *options)

    def run_pipeline(self, jobs: Mapping[str, Any], *options: str, **fields: Any) -> Any:
        """Run a pipeline of these jobs."""
        document = {"type": "pipeline", "settings": {"default_compute": "azureml:cpu"}, **fields, "jobs": jobs}
        return self.run_document(document, *options)

    def run_document(self, document: Mapping[str, Any], *options: str) -> Any:
        file = self.write("job.yaml", json.dumps(document))
        self.runs += 1
        return self.trainyard("run", str(file), "--run-dir", str(self.run_folder), *options)

    def log_of(self, job: str, rank: int = 0) -> str:
        """What a process of a job of the last run printed."""
        log: str = self.record["jobs"][job]["logs"][rank]
        return (self.run_folder / log).read_text(encoding="utf-8")

    def component(self, name: str, command: str, **fields: Any) -> str:
        """Write a component's file; return the reference to it."""
        document = {"type": "command", "environment": "azureml:any:1", "command": command, **fields}
        self.write(f"{name}.yaml", json.dumps(document))
        return f"./{name}.yaml"

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / f"run-{self.runs}"

    @property
    def record(self) -> dict[str, Any]:
        """The run.json of the last run."""
        record: dict[str, Any] = json.loads((self.run_folder / "run.json").read_text(encoding="utf-8"))
        return record


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainyard: Callable[..., Any]) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, trainyard)


PYTORCH_ON_EACH_OF_EIGHT = {"type": "pytorch", "process_count_per_instance": 8}


@pytest.mark.parametrize(
    ("distribution", "nodes", "most", "shape"),
    [
        (None, 5, 4, "5 processes (5 x 1) were reduced to 2 (2 x 1)"),
        (None, 7, 4, "7 processes (7 x 1) were reduced to 2 (2 x 1)"),
        ({"type": "pytorch", "process_count_per_instance": 7}, 1, 4, "7 processes (1 x 7) were reduced to 2 (1 x 2)"),
        (PYTORCH_ON_EACH_OF_EIGHT, 8, 4, "64 processes (8 x 8) were reduced to 4 (2 x 2)"),
        (PYTORCH_ON_EACH_OF_EIGHT, 5, 2, "40 processes (5 x 8) were reduced to 2 (2 x 1)"),
        (
            {"type": "tensorflow", "worker_count": 8, "parameter_server_count": 3},
            11,
            4,
            "11 processes (8 workers and 3 parameter servers) were reduced to 4 (2 workers and 2 parameter servers)",
        ),
    ],
)
def test_fewer_processes_are_of_the_same_kind(
    project: Project, distribution: dict[str, Any] | None, nodes: int, most: int, shape: str
) -> None:
    job: dict[str, Any] = {"command": "echo node $AZUREML_CR_NODE_RANK", "resources": {"instance_count": nodes}}
    if distribution is not None:
        job["distribution"] = distribution

    run = project.run(job, "--max-processes", str(most))

    assert run.exit_code == 0, run.stderr
    line = f"{shape} by --max-processes {most}"
    (noted,) = project.record["notes"]
    assert noted.endswith(line), noted
    assert sum(line in shown for shown in (run.stdout + run.stderr).splitlines()) == 1
    (ran,) = project.record["jobs"].values()
    assert ran["nodes"] >= min(2, nodes)


def test_one_process_for_several_nodes_is_what_was_asked_for_and_said_to_prove_less(project: Project) -> None:
    run = project.run({"command": "true", "resources": {"instance_count": 2}}, "--max-processes", "1")

    assert run.exit_code == 0, run.stderr
    (noted,) = project.record["notes"]
    assert noted.endswith("by --max-processes 1, which leaves out what happens between nodes")


# The manner of azureml-examples' hello-world-output-data.yml: nothing is quoted, since no path of Azure ML needs it.
UNQUOTED = """mkdir -p ${{outputs.made}}/within
cp ${{inputs.data}} ${{outputs.made}}/within/
echo at $PWD
echo in $(pwd)"""


@pytest.mark.parametrize("name", ["plain", "with a space", "größe", "it's $HOME"])
def test_a_job_sees_no_path_that_needs_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainyard: Callable[..., Any], name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    project = Project(folder, trainyard)
    project.write("data.txt", "of the project\n")
    job = {
        "command": UNQUOTED,
        "inputs": {"data": {"type": "uri_file", "path": "./data.txt"}},
        "outputs": {"made": {"type": "uri_folder"}},
    }

    run = project.run(job, "--strict")

    assert run.exit_code == 0, run.stderr
    (ran,) = project.record["jobs"].values()
    made = project.run_folder / ran["outputs"]["made"]
    assert [file.relative_to(made).as_posix() for file in made.rglob("*.txt")] == ["within/data.txt"]
    (log,) = ran["logs"]
    words = (project.run_folder / log).read_text().split()
    assert words[0::2] == ["at", "in"]
    assert len(words) == 4, "each path is one word"
    assert all(word.isascii() and "'" not in word for word in words)
    assert {file.name for file in folder.iterdir()} <= {"data.txt", "job.yaml", "runs", ".trainyard", ".amlignore"}
    assert (project.run_folder / "jobs" / "job" / "data" / "made").resolve() == made, "also after the run"


def test_a_module_that_an_installed_package_lacks_is_missed_in_its_version(project: Project) -> None:
    file = project.write("job.yml", "type: command\ncommand: python -c 'import click.no'\nenvironment: azureml:any:1\n")

    run = subprocess.run([sys.executable, "-m", "trainyard", "run", file], capture_output=True, text=True)

    assert run.returncode == 1
    missed = f"click {version('click')} is installed, which has no click.no: install the version that has it"
    assert missed in run.stderr


def test_another_file_of_the_same_name_has_not_run_before(project: Project) -> None:
    for folder, word in (("one", "first"), ("two", "second")):
        project.write(f"{folder}/job.yml", f"type: command\ncommand: echo {word}\nenvironment: azureml:any:1\n")

        run = project.trainyard("run", f"{folder}/job.yml")

        assert "1 process: it has not run from this file before" in run.stderr


def test_a_failure_names_the_paths_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainyard: Callable[..., Any]
) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    monkeypatch.chdir(folder)
    project = Project(folder, trainyard)
    command = "echo step: error: there is no ${{outputs.made}}/absent; exit 2"

    run = project.run({"command": command, "outputs": {"made": {"type": "uri_folder"}}})

    assert run.exit_code == 1
    (ran,) = project.record["jobs"].values()
    assert f"{project.run_folder / ran['outputs']['made']}/absent" in ran["reason"]


def test_the_trial_of_a_sweep_in_a_pipeline_needs_no_name(project: Project) -> None:
    # azure-ai-ml 1.35.2 loads it as the component `azureml_anonymous`, as it does a command job's component.
    project.write("src/train.py", "import mlflow, sys\nmlflow.log_metric('loss', float(sys.argv[1]))\n")
    rate = {"rate": {"type": "number"}}
    trial = project.component("trial", "python train.py ${{inputs.rate}}", code="./src", inputs=rate)
    sweep = {
        "type": "sweep",
        "trial": trial,
        "sampling_algorithm": "grid",
        "search_space": {"rate": {"type": "choice", "values": [0.5, 0.25]}},
        "objective": {"goal": "minimize", "primary_metric": "loss"},
        "limits": {"max_total_trials": 2},
    }

    run = project.run_pipeline({"search": sweep})

    assert run.exit_code == 0, run.stderr
    trials = project.record["jobs"]["search"]["trials"]
    assert [each["inputs"] for each in trials] == [{"rate": 0.5}, {"rate": 0.25}]


def test_a_folder_of_parts_is_written_to_a_file_output(project: Project) -> None:
    # Spark writes a folder of parts under the name it is given; Azure ML mounts the storage that the path is in.
    made = {"outputs": {"rows": {"type": "uri_file"}}}
    write = project.component("write", "mkdir ${{outputs.rows}}; echo 7 > ${{outputs.rows}}/part-0", **made)
    read = project.component("read", "cat ${{inputs.rows}}/part-0", inputs={"rows": {"type": "uri_file"}})
    jobs = {
        "write": {"component": write},
        "read": {"component": read, "inputs": {"rows": "${{parent.jobs.write.outputs.rows}}"}},
    }

    run = project.run_pipeline(jobs, "--strict")

    assert run.exit_code == 0, run.stderr
    assert project.log_of("read") == "7\n"

    project.component("write", "mkdir ${{outputs.rows}}", **made)
    empty = project.run_pipeline(jobs)

    assert empty.exit_code == 1
    assert "did not write its output rows" in project.record["jobs"]["write"]["reason"]


@pytest.mark.parametrize("of", ["the pipeline", "the job", "another job"])
def test_a_file_may_be_given_for_a_folder(project: Project, of: str) -> None:
    # The client compares no types: azure-ai-ml 1.35.2, PipelineJob._validate.
    project.write("rows.csv", "1,2\n")
    data = {"type": "uri_file", "path": "./rows.csv"}
    make = project.component("make", "echo 1,2 > ${{outputs.rows}}", outputs={"rows": {"type": "uri_file"}})
    show = project.component("show", "cat ${{inputs.rows}}", inputs={"rows": {"type": "uri_folder"}})
    jobs: dict[str, Any] = {"show": {"component": show}}
    fields: dict[str, Any] = {}
    if of == "the pipeline":
        fields = {"inputs": {"data": data}}
        jobs["show"]["inputs"] = {"rows": "${{parent.inputs.data}}"}
    elif of == "the job":
        jobs["show"]["inputs"] = {"rows": data}
    else:
        jobs["make"] = {"component": make}
        jobs["show"]["inputs"] = {"rows": "${{parent.jobs.make.outputs.rows}}"}

    run = project.run_pipeline(jobs, **fields)

    assert run.exit_code == 0, run.stderr
    assert project.log_of("show") == "1,2\n"
    assert "show: 'rows' takes a folder, and gets a file" in project.record["notes"]
    linted = project.trainyard("lint", "job.yaml", "--format", "json")
    found = [each for each in json.loads(linted.stdout) if each["rule"] == "AML307"]
    assert [each["severity"] for each in found] == ["info"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have 127.0.0.1 alone")
def test_each_node_has_a_host_of_its_own_in_the_list(project: Project) -> None:
    # A hostfile made of the list, as azureml-examples' start-deepspeed.sh makes it, names each node once.
    job = {"command": "echo $AZ_BATCH_HOST_LIST $AZ_BATCHAI_JOB_MASTER_NODE_IP", "resources": {"instance_count": 3}}

    run = project.run(job)

    assert run.exit_code == 0, run.stderr
    assert len({project.log_of("job", node) for node in range(3)}) == 1
    listed, first = project.log_of("job").split()
    hosts = listed.split(",")
    assert len(set(hosts)) == 3
    assert hosts[0] == first
    with socket.create_server(("0.0.0.0", 0)) as server:
        for host in hosts:
            socket.create_connection((host, server.getsockname()[1]), timeout=5).close()


SWEEP: dict[str, Any] = {
    "type": "sweep",
    "trial": {"command": "echo ${{search_space.x}}", "environment": "azureml:any:1"},
    "sampling_algorithm": "grid",
    "objective": {"goal": "minimize", "primary_metric": "loss"},
    "limits": {"max_total_trials": 2},
}


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        # The client's field of an input takes no date; PyYAML makes one of it. In a pipeline it is no JSON either.
        ({"inputs": "{day: 2026-01-31}"}, "YAML reads 2026-01-31 as a date, and Azure ML's client takes only a string"),
        ({"tags": "{at: 2026-01-31 10:00:00}"}, "YAML reads 2026-01-31 10:00:00 as a date"),
        # OperationOrchestrator.get_asset_arm_id: "Version must be provided".
        ({"environment": "azureml:any"}, "'azureml:any' has no version"),
        # ChoiceSchema: integers, texts, numbers and mappings.
        (
            SWEEP | {"search_space": "{x: {type: choice, values: [true, false]}}"},
            "is the boolean true; expected a string or a number",
        ),
        (
            SWEEP | {"search_space": "{x: {type: choice, values: [[1, 2], [3]]}}"},
            "is a list; expected a string or a number",
        ),
    ],
)
def test_what_the_official_client_refuses_is_refused(project: Project, fields: dict[str, Any], refused: str) -> None:
    """As azure-ai-ml 1.35.2 does, when it reads the file or resolves what the file names."""
    job = {"type": "command", "command": "true", "environment": "azureml:any:1", "compute": "azureml:cpu"} | fields
    if job["type"] == "sweep":
        del job["command"], job["environment"]
    lines = [f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in job.items()]
    file = project.write("job.yaml", "\n".join(lines))

    run = project.trainyard("run", str(file), "--run-dir", str(project.folder / "run"))

    assert run.exit_code == 1
    assert refused in run.stderr
    assert not (project.folder / "run").exists()


def sent_by_the_client(file: Path) -> Any:
    """What azure-ai-ml makes of a job's file, before it asks a workspace anything."""
    loaded = load_job(file)
    if isinstance(loaded, PipelineJob):
        loaded._validate()
    return (loaded._to_job() if isinstance(loaded, Command) else loaded)._to_rest_object()


COMMAND = {"type": "command", "command": "true", "environment": "azureml:any:1", "compute": "azureml:cpu"}
DRAWN = {"compute": "azureml:cpu", "search_space": {"x": {"type": "choice", "values": [1]}}, **SWEEP}
TASK = {"type": "run_function", "code": "src", "entry_script": "score.py", "environment": "azureml:any:1"}
PARALLEL = {
    "type": "parallel",
    "inputs": {"data": {"type": "uri_folder", "path": "src"}},
    "outputs": {"scores": {"type": "uri_folder"}},
    "input_data": "${{inputs.data}}",
    "mini_batch_size": "1",
    "task": TASK,
}


def in_place(component: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A job of a pipeline with its component written in place."""
    return {"type": component["type"], "component": {"name": "c"} | component, **fields}


COMMAND_COMPONENT = {"type": "command", "command": "true", "environment": "azureml:any:1"}
UNREAD_DEFAULT = {"x": {"type": "number", "default": float("inf")}}


def declaring(declared: dict[str, Any]) -> dict[str, Any]:
    """A job whose component declares an input."""
    return in_place(COMMAND_COMPONENT | {"inputs": {"x": declared}}, inputs={"x": 1})


# How the client refuses, also by falling over.
REFUSALS = (
    ValidationError,
    UserErrorException,
    ValidationException,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
)
PARALLEL_COMPONENT = PARALLEL | {"inputs": {"data": {"type": "uri_folder"}}}
WITHOUT_ENVIRONMENT = {key: TASK[key] for key in TASK if key != "environment"}
GIVEN_DATA = {"inputs": PARALLEL["inputs"]}


@pytest.mark.parametrize(
    ("document", "refused"),
    [
        (COMMAND | {"inputs": {"x": float("inf")}}, "is the number inf; expected a literal"),
        (COMMAND | {"inputs": {"x": 1, "x.y": 2}}, "'x.y' is in the group 'x'"),
        (COMMAND | {"inputs": {"a-b": 1}}, "'a-b' is not a valid name"),
        (COMMAND | {"outputs": {"x.y": None}}, "'x.y' is not a valid name"),
        (COMMAND | {"name": 3}, "'name' is the number 3; expected a string"),
        (COMMAND | {"properties": {"a": 1}}, "'a' is the number 1; expected a string (quote numbers and booleans)"),
        (COMMAND | {"services": {"s": {"type": "ssh", "port": "a"}}}, "'port' is 'a'; expected a whole number"),
        (DRAWN | {"search_space": {"x": {"type": "uniform", "min_value": 0, "max_value": float("inf")}}}, "number inf"),
        (DRAWN | {"limits": {"max_concurrent_trials": 2}}, "'limits' has no 'max_total_trials'"),
        (DRAWN | {"early_termination": {"type": "truncation_selection"}}, "has no 'truncation_percentage'"),
        (DRAWN | {"sampling_algorithm": {"type": "random", "seed": "x"}}, "'seed' is 'x'; expected a whole number"),
        (DRAWN | {"trial": {**SWEEP["trial"], "inputs": {"a": 1}}}, "unknown key 'inputs' in 'trial'"),
        (
            DRAWN | {"trial": "./component.yaml"},
            "'trial' is './component.yaml'; expected keys such as command and environment",
        ),
        (
            PARALLEL | {"mini_batch_size": 1},
            "'mini_batch_size' is the number 1; expected a number of files, or of bytes such as 10kb",
        ),
        (PARALLEL | {"task": WITHOUT_ENVIRONMENT}, "'task' has no 'environment'"),
        (PARALLEL | {"limits": {"timeout": 3}}, "unknown key 'limits' in the job 'job'; Azure ML's client refuses"),
        (
            PARALLEL | {"environment_variables": {"A": 1}},
            "'A' is the number 1; expected a string (quote numbers and booleans)",
        ),
        (PARALLEL | {"partition_keys": [1]}, "item 1 of 'partition_keys' is the number 1; expected a column's name"),
        (
            in_place(PARALLEL_COMPONENT | {"mini_batch_size": 1}, **GIVEN_DATA),
            "'mini_batch_size' is the number 1; expected a number of files",
        ),
        (in_place(PARALLEL_COMPONENT | {"task": WITHOUT_ENVIRONMENT}, **GIVEN_DATA), "'task' has no 'environment'"),
        (
            in_place(PARALLEL_COMPONENT | {"retry_settings": [1]}, **GIVEN_DATA),
            "'retry_settings' is a list; expected keys with values",
        ),
        (
            in_place(PARALLEL_COMPONENT | {"logging_level": "LOUD"}, **GIVEN_DATA),
            "expected one of DEBUG, INFO, WARNING",
        ),
        (in_place(PARALLEL_COMPONENT, task={"type": "run_function"}, **GIVEN_DATA), "'task' has no 'environment'"),
        (
            in_place(PARALLEL_COMPONENT, environment_variables={"A": 1}, **GIVEN_DATA),
            "'A' is the number 1; expected a string (quote",
        ),
        (declaring({"type": "integer", "default": "abc"}), "the text 'abc' is not a whole number"),
        (declaring({"type": "number", "default": "${{inputs.y}}"}), "the text '${{inputs.y}}' is not a number"),
        (declaring({"type": "boolean", "default": 3}), "the number 3 is neither true nor false"),
        (declaring({"type": "integer", "min": "a"}), "'min' is 'a'; expected a number"),
        (declaring({"type": "integer", "max": float("inf")}), "'max' is the number inf; expected a number"),
        (in_place(COMMAND_COMPONENT | {"inputs": UNREAD_DEFAULT}), "does not set the required input 'x'"),
        (
            in_place({"type": "pipeline", "jobs": {"a": COMMAND}}),
            "Azure ML's client reads no pipeline component in place",
        ),
        ({"component": {"type": "pipeline", "jobs": {"a": COMMAND}}}, "reads no pipeline component in place"),
        ({"type": "pipeline", "component": "file:./pipeline.yaml"}, "is a pipeline component's file without 'file:'"),
        ({"type": "parallel", "component": COMMAND_COMPONENT}, "the component of the job 'job' is a command component"),
        (declaring({"type": "string", "max": 2}), "unknown key 'max' in 'x'; Azure ML's client refuses the file"),
    ],
)
def test_what_the_client_refuses_before_it_sends_is_refused(
    project: Project, document: dict[str, Any], refused: str
) -> None:
    project.write("src/score.py", "def run(files):\n    return files\n")
    project.write("component.yaml", "type: command\nname: c\ncommand: echo\nenvironment: azureml:any:1\n")
    project.write("pipeline.yaml", json.dumps({"type": "pipeline", "name": "p", "jobs": {"a": COMMAND}}))
    if "component" in document or document["type"] == "parallel":
        document = {"type": "pipeline", "settings": {"default_compute": "azureml:cpu"}, "jobs": {"job": document}}
    # JSON writes infinities as YAML does not.
    file = project.write("job.yaml", json.dumps(document).replace("Infinity", ".inf"))

    run = project.trainyard("run", str(file), "--run-dir", str(project.folder / "run"))

    assert run.exit_code == 1
    assert refused in run.stderr
    assert not (project.folder / "run").exists()
    with pytest.raises(REFUSALS):
        sent_by_the_client(file)


@pytest.mark.parametrize("declared", [{"type": "integer", "default": 1.5}, {"type": "number", "default": True}])
def test_a_default_that_the_client_takes_is_only_reported(project: Project, declared: dict[str, Any]) -> None:
    document = declaring(declared)

    run = project.run_pipeline({"job": document})

    assert run.exit_code == 0, run.stderr
    assert f"'x' is of type {declared['type']}" in run.stderr
    assert "AML304: Azure ML accepts it" in run.stderr
    sent_by_the_client(project.folder / "job.yaml")


def test_a_component_with_an_id_is_said_to_be_that_of_azure_ml(project: Project) -> None:
    registered = "azureml:train:3"
    project.write("component.yaml", json.dumps({"name": "c", "id": registered, **COMMAND_COMPONENT}))

    run = project.run_pipeline({"job": {"type": "command", "component": "./component.yaml"}})

    assert run.exit_code == 0, run.stderr
    assert f"a job with this 'id' runs the component '{registered}' of Azure ML" in run.stderr
    sent = sent_by_the_client(project.folder / "job.yaml").as_dict()["properties"]["jobs"]["job"]
    assert sent["componentId"] == registered


def test_dates_are_taken_where_the_client_takes_them(project: Project) -> None:
    component = "type: command\nname: c\nversion: 2026-01-31\nenvironment: azureml:any:1\ncommand: echo $DAY\n"
    project.write("component.yaml", component)
    job = "{component: ./component.yaml, environment_variables: {DAY: 2026-01-31}}"
    pipeline = f"type: pipeline\nsettings: {{default_compute: azureml:cpu}}\njobs:\n  show: {job}\n"
    project.runs += 1

    run = project.trainyard("run", str(project.write("job.yaml", pipeline)), "--run-dir", str(project.run_folder))

    assert run.exit_code == 0, run.stderr
    assert project.log_of("show") == "2026-01-31\n"


def test_an_output_that_the_component_lacks_is_dropped_as_by_the_client(project: Project) -> None:
    component = (
        "type: command\nname: c\nenvironment: azureml:any:1\ncommand: echo ran\noutputs: {o: {type: uri_folder}}\n"
    )
    project.write("component.yaml", component)
    job = "{component: ./component.yaml, outputs: {oo: {mode: upload}}}"
    file = project.write(
        "job.yaml", f"type: pipeline\nsettings: {{default_compute: azureml:cpu}}\njobs:\n  show: {job}\n"
    )
    project.runs += 1

    run = project.trainyard("run", str(file), "--run-dir", str(project.run_folder))

    assert run.exit_code == 0, run.stderr
    assert "binds the output 'oo', which its component does not have [AML303: Azure ML accepts it" in run.stderr
    sent = sent_by_the_client(file).as_dict()["properties"]["jobs"]["show"]
    assert "outputs" not in sent


LISTS_ITS_FOLDER = "import os\nprint(sorted(os.listdir()))\n"
LISTED = {"command": "python list_files.py", "code": "src"}


def the_only_job(project: Project) -> dict[str, Any]:
    (ran,) = project.record["jobs"].values()
    return dict(ran)


def reused(project: Project) -> bool:
    """Whether the job of the last run, which completed, was reused."""
    assert the_only_job(project)["status"] == "completed"
    return the_only_job(project)["reused_from"] is not None


def logged(project: Project) -> str:
    (log,) = the_only_job(project)["logs"]
    return (project.run_folder / log).read_text(encoding="utf-8")


def test_a_file_that_no_script_imports_is_part_of_the_code(project: Project) -> None:
    """Azure ML hashes the whole snapshot: a script may list its folder, or start another."""
    project.write("src/list_files.py", LISTS_ITS_FOLDER)
    project.write("src/.amlignore", "notes.py\n")
    project.run(LISTED)

    project.write("src/notes.py", "")
    project.run(LISTED)
    assert reused(project), ".amlignore excludes it"

    project.write("src/evaluate.py", "")
    project.run(LISTED)
    assert not reused(project)
    assert "evaluate.py" in logged(project)
    assert the_only_job(project)["reuse"].endswith(": code (evaluate.py is new; job does not import it)")


def test_files_that_a_job_does_not_import_are_skipped_on_demand(project: Project) -> None:
    """It is reused then, but without the flag it is not: nobody has promised that nothing else reads them."""
    project.write("src/train.py", "import layers\nprint(layers.WIDTH)\n")
    project.write("src/layers.py", "WIDTH = 1\n")
    project.write("src/evaluate.py", "")
    job = {"command": "python train.py", "code": "src"}
    project.run(job)

    project.write("src/evaluate.py", "print()\n")
    project.run(job, "--reuse-imports")
    assert reused(project)
    taken = the_only_job(project)["reuse"]
    assert taken == "taken from run run-1, with --reuse-imports: evaluate.py changed; job does not import it"

    shown = project.run(job).stderr
    assert not reused(project)
    assert "code (evaluate.py changed; job does not import it)" in shown

    for width, text in ((2, "WIDTH = 2\n"), (3, "import importlib\nWIDTH = 3\n")):
        project.write("src/layers.py", text)
        project.run(job, "--reuse-imports")
        assert not reused(project)
        assert logged(project) == f"{width}\n"
        assert the_only_job(project)["reuse"].endswith(": code (layers.py changed)")

    project.write("src/evaluate.py", "")
    project.run(job, "--reuse-imports")
    assert not reused(project), "layers.py may import anything now"


def test_a_resumed_run_reuses_what_the_run_would_have(project: Project) -> None:
    project.write("src/train.py", "print(1)\n")
    project.write("src/evaluate.py", "")
    job = {"command": "python train.py", "code": "src"}
    project.run(job)
    project.write("src/evaluate.py", "print()\n")
    project.run(job, "--reuse-imports")

    # As if it had been interrupted before the job began.
    record = project.record
    record["status"] = record["jobs"]["job"]["status"] = "canceled"
    (project.run_folder / "run.json").write_text(json.dumps(record))
    resumed = project.trainyard("runs", "resume", str(project.run_folder))

    assert resumed.exit_code == 0, resumed.stderr
    assert the_only_job(project)["reuse"].startswith("taken from run run-1, with --reuse-imports: ")


def test_a_file_outside_the_code_counts_by_its_content(project: Project) -> None:
    settings = project.write("elsewhere/settings.txt", "one\n")
    job = {"command": f"cat {settings}; ls --color=never {settings.parent}", "code": "src"}
    project.write("src/train.py", "")
    first = project.run(job)
    assert f"{settings} is a path of this machine, which the cluster does not have" in first.stderr
    project.run(job)
    assert reused(project)

    settings.write_text("two\n", encoding="utf-8")
    project.run(job)
    assert not reused(project)
    assert logged(project).startswith("two\n")
    assert str(settings) in the_only_job(project)["reuse"]

    project.write("elsewhere/more.txt", "")
    project.run(job)
    assert not reused(project)
    assert "more.txt" in logged(project)


@pytest.mark.parametrize("home", ["~", "$HOME", '"${HOME}"'])
def test_a_file_at_home_is_one_outside_the_code(project: Project, monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("HOME", str(project.folder / "home"))
    settings = project.write("home/settings.txt", "one\n")
    job = {"command": f"cat {home}/settings.txt"}
    assert f"{settings} is a path of this machine, which the cluster does not have" in project.run(job).stderr
    settings.write_text("two\n", encoding="utf-8")
    project.run(job)
    assert not reused(project)
    assert logged(project) == "two\n"


def test_what_a_job_writes_outside_the_code_is_no_reason_to_run_it_again(project: Project) -> None:
    job = {
        "command": f"date +%N > {project.folder}/elsewhere.log; date +%N > $HF_HOME/model",
        "environment_variables": {"HF_HOME": str(project.folder / "cache")},
    }
    (project.folder / "cache").mkdir()
    project.run(job)
    project.run(job)
    assert reused(project)


def test_a_folder_with_a_file_that_cannot_be_read_still_counts_by_what_can(project: Project) -> None:
    project.write("data/open.csv", "1\n")
    # A file that nobody can read, root neither: it maps no memory at its beginning.
    (project.folder / "data" / "unreadable").symlink_to("/proc/self/mem" if sys.platform == "linux" else "/dev/null")
    listing = {"command": f"ls {project.folder}/data"}
    project.run(listing)
    project.run(listing)
    assert reused(project)
    project.write("data/open.csv", "22\n")
    project.run(listing)
    assert not reused(project)


@pytest.mark.parametrize(
    "named", [{"inputs": {"settings": "{file}"}}, {"environment_variables": {"SETTINGS": "of=here:{file}"}}]
)
def test_a_file_that_a_value_names_counts_too(project: Project, named: dict[str, Any]) -> None:
    file = project.write("settings.txt", "one\n")
    job = {"command": "cat settings", "code": "src", **json.loads(json.dumps(named).replace("{file}", str(file)))}
    job["command"] = f"cat {'${{inputs.settings}}' if 'inputs' in named else '${SETTINGS#*:}'}"
    project.write("src/train.py", "")
    project.run(job)

    file.write_text("two\n", encoding="utf-8")
    project.run(job)

    assert not reused(project)
    assert logged(project) == "two\n"


def test_what_an_image_has_itself_is_no_reason_to_warn(project: Project) -> None:
    run = project.run({"command": "/bin/bash -c 'cd /tmp && ls /usr/bin > /dev/null'"})

    assert "path of this machine" not in run.stderr
    project.run({"command": "/bin/bash -c 'cd /tmp && ls /usr/bin > /dev/null'"})
    assert reused(project)


OF_HATCH = {"_helpers.pth": "{folder}\n"}
OF_SETUPTOOLS = {
    "__editable__.helpers-1.0.pth": "import __editable___helpers_1_0_finder",
    "__editable___helpers_1_0_finder.py": "MAPPING: dict[str, str] = {{'helpers': '{folder}/helpers'}}\n"
    "import sys\nsys.path.append(MAPPING['helpers'].removesuffix('/helpers'))\n",
}


@pytest.mark.parametrize("installed", [OF_HATCH, OF_SETUPTOOLS], ids=["path", "finder"])
def test_an_editable_install_counts_by_its_content(
    project: Project, tmp_path_factory: pytest.TempPathFactory, installed: dict[str, str]
) -> None:
    python = tmp_path_factory.mktemp("python") / "bin" / "python"
    venv.create(python.parents[1])
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    for name, text in installed.items():
        (packages / name).write_text(text.format(folder=project.folder / "library"), encoding="utf-8")
    words = project.write("library/helpers/__init__.py", "WORD = 'one'\n")
    project.write("library/data/rows.csv", "1")
    project.write("src/train.py", "import helpers\nprint(helpers.WORD)\n")
    job = {"command": "python train.py", "code": "src"}

    first = project.run(job, "--python", str(python))
    assert logged(project) == "one\n"
    assert f"job: it imports helpers from {project.folder / 'library'}" in first.stderr
    assert "(an editable install), which the cluster does not have" in first.stderr
    project.write("library/data/rows.csv", "2")
    project.run(job, "--python", str(python))
    assert reused(project), "that is not what a script imports"

    words.write_text("WORD = 'another'\n", encoding="utf-8")
    project.run(job, "--python", str(python))
    assert not reused(project)
    assert logged(project) == "another\n"
    assert f"editable install {project.folder / 'library'}" in the_only_job(project)["reuse"]

    # What brings the package along needs no warning.
    project.write("src/helpers.py", "WORD = 'own'\n")
    own = project.run(job, "--python", str(python))
    assert "editable install)" not in own.stderr
    assert logged(project) == "own\n"


@pytest.mark.parametrize("metrics", [50, 51])
def test_more_metrics_than_azure_ml_takes_are_reported(project: Project, metrics: int) -> None:
    store = "${MLFLOW_TRACKING_URI#file://}/$MLFLOW_EXPERIMENT_ID/$MLFLOW_RUN_ID/metrics"
    job = {"command": f"mkdir -p {store}/loss && touch {store}/loss/{{1..{metrics}}}"}

    run = project.run(job)

    said = f"it logged {metrics} metrics with MLflow; a run on Azure ML takes at most 50"
    assert (said in run.stderr) is (metrics == 51)
    assert the_only_job(project)["warnings"] == ([said] if metrics == 51 else [])
    project.run(job)
    assert reused(project)


def test_a_large_input_is_read_once(project: Project) -> None:
    """More than a gigabyte is linked to the job, which changes the file's change time, but not its content."""
    large = project.write("large.bin", "")
    os.truncate(large, (1 << 30) + 1)
    os.utime(large, (1_700_000_000, 1_700_000_000))
    job = {"command": "wc -c ${{inputs.data}}", "inputs": {"data": {"type": "uri_file", "path": "large.bin"}}}
    reading = "reading inputs to find out what has changed"

    assert reading in project.run(job).stderr
    assert reading not in project.run(job, "--no-cache").stderr
    assert not reused(project)
    assert reading not in project.run(job).stderr
    assert reused(project)

    os.utime(large, (1_700_000_001, 1_700_000_001))
    assert reading in project.run(job).stderr


# Inputs are mounted read-only unless a job asks for another mode:
# https://learn.microsoft.com/azure/machine-learning/how-to-read-write-data-v2#modes
ROWS = {"rows": {"type": "uri_folder", "path": "./rows"}}
can_mount = os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.fixture
def nothing_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without unshare(1): what a job writes to an input is found when it has ended."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "cat", "chmod", "mkdir", "rm", "sh"):
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))


@pytest.mark.skipif(not can_mount, reason="only root can write to a read-only file, and needs a mount to be refused")
@pytest.mark.parametrize(
    "command",
    [
        "echo new > ${{inputs.rows}}/b.csv",
        "rm -f ${{inputs.rows}}/a.csv",
        "chmod u+w ${{inputs.rows}}/a.csv",
        "echo more >> ${{inputs.rows}}/a.csv",
        "rm -rf ${{inputs.rows}}",
        'cd ${{inputs.rows}}; env -i /bin/sh -c "echo new > $PWD/b.csv"',
    ],
)
def test_not_even_root_can_write_to_an_input(project: Project, command: str) -> None:
    project.write("rows/a.csv", "1\n").chmod(0o644)

    done = project.run({"command": command, "inputs": ROWS})

    assert done.exit_code == 1, done.stdout
    assert "Read-only file system" in logged(project)
    assert "it wrote to its input rows, which Azure ML mounts read-only" in done.stdout + done.stderr
    assert [file.name for file in (project.folder / "rows").iterdir()] == ["a.csv"]
    assert (project.folder / "rows" / "a.csv").read_text() == "1\n"


def test_a_job_that_leaves_its_input_alone_writes_everywhere_else(project: Project) -> None:
    project.write("rows/a.csv", "1\n")
    command = "cat ${{inputs.rows}}/a.csv | tee b.csv outputs/c.csv ${{outputs.made}}/d.csv; cd ..; touch here"
    project.run({"command": command, "inputs": ROWS, "outputs": {"made": {"type": "uri_folder"}}})

    assert logged(project) == "1\n"
    assert the_only_job(project)["status"] == "completed"
    assert not list(project.run_folder.rglob("INPUT_*")), "it is taken back"


@pytest.mark.skipif(not can_mount, reason="without a mount, the file is found when the job has ended")
def test_what_ends_with_a_job_ends_with_its_mounts_too(project: Project) -> None:
    """A process that a job leaves behind is found by its variables, in whatever view of the files it runs."""
    project.write("rows/a.csv", "1\n")
    left = "nohup setsid sleep 600 > /dev/null 2>&1 & grep -c INPUT_rows /proc/mounts"

    project.run({"command": left, "inputs": ROWS})

    assert logged(project) == "1\n"
    assert processes_beneath(project.run_folder) == []
    assert "INPUT_rows" not in Path("/proc/mounts").read_text()


@pytest.mark.usefixtures("nothing_is_mounted")
@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("echo new > ${{inputs.rows}}/b.csv", "b.csv"),
        ("rm -f ${{inputs.rows}}/a.csv", "a.csv"),
        ("mkdir -p ${{inputs.rows}}/__pycache__ && echo cache > ${{inputs.rows}}/__pycache__/a.pyc", None),
        ("cat ${{inputs.rows}}/a.csv > b.csv", None),
    ],
)
def test_a_job_that_adds_or_removes_files_of_an_input_fails(project: Project, command: str, file: str | None) -> None:
    project.write("rows/a.csv", "1\n").chmod(0o644)
    done = project.run({"command": command, "inputs": ROWS})
    (job,) = project.record["jobs"].values()
    if file is None:
        assert done.exit_code == 0, done.stdout
        return
    assert done.exit_code == 1
    assert (
        f"it wrote to an input, which Azure ML mounts read-only: rows ({project.folder}/rows/{file})"
        in done.stdout + done.stderr
    )
    assert job["status"] == "failed"


@pytest.mark.usefixtures("nothing_is_mounted")
def test_a_job_that_writes_to_a_file_of_an_input_is_warned(project: Project) -> None:
    """Not failed: MLflow rewrites a model's description as it loads it, where it may."""
    project.write("rows/a.csv", "1\n")
    command = "chmod u+w ${{inputs.rows}}/a.csv && echo more >> ${{inputs.rows}}/a.csv"
    done = project.run({"command": command, "inputs": ROWS})
    assert done.exit_code == 0
    assert (
        f"it wrote to its input rows ({project.folder}/rows/a.csv): Azure ML mounts inputs read-only"
        in done.stdout + done.stderr
    )
    assert (project.folder / "rows" / "a.csv").read_text() == "1\n"


@pytest.mark.parametrize("place", ["job", "pipeline"])
def test_a_downloaded_input_is_the_jobs_own(project: Project, place: str) -> None:
    project.write("rows/a.csv", "1\n")
    rows = {"type": "uri_folder", "path": "./rows", "mode": "download"}
    command = "echo more >> ${{inputs.rows}}/a.csv && echo 1 > ${{inputs.rows}}/b.csv"
    inputs = {"rows": {"type": "uri_folder"}}
    if place == "job":
        done = project.run({"command": command, "inputs": {"rows": rows}})
    else:
        component = project.component("add", command, inputs=inputs)
        jobs = {"add": {"component": component, "inputs": {"rows": "${{parent.inputs.rows}}"}}}
        done = project.run_pipeline(jobs, inputs={"rows": rows})
    assert done.exit_code == 0, done.stdout
    assert (project.folder / "rows" / "a.csv").read_text() == "1\n"


@dataclass(frozen=True)
class Sight:
    """The variables and paths that a job sees on Azure ML, each with its source."""

    prints: str
    command: str
    source: str
    use: Mapping[str, Any] = field(default_factory=dict)
    component: Mapping[str, Any] = field(default_factory=dict)


CLIENT = "azure-ai-ml 1.35.2"
COMMAND_JOB = "https://learn.microsoft.com/azure/machine-learning/reference-yaml-job-command"
COMPONENT = "https://learn.microsoft.com/azure/machine-learning/reference-yaml-component-command"
DISTRIBUTED = "https://learn.microsoft.com/azure/machine-learning/how-to-train-distributed-gpu"
TEXT = {"inputs": {"text": {"type": "string", "default": "of the component"}}}
TWO_OF_TWO = {"distribution": PYTORCH_ON_EACH_OF_EIGHT | {"process_count_per_instance": 2}}
DATA = {"inputs": {"rows": {"type": "uri_file"}}}
MADE = {"outputs": {"made": {"type": "uri_folder"}}}

OF_TRACKING = (
    "MLFLOW_TRACKING_URI MLFLOW_TRACKING_TOKEN MLFLOW_EXPERIMENT_ID MLFLOW_EXPERIMENT_NAME MLFLOW_RUN_ID "
    "AZUREML_ARM_SUBSCRIPTION AZUREML_ARM_RESOURCEGROUP AZUREML_ARM_WORKSPACE_NAME AZUREML_ARM_PROJECT_NAME "
    "AZUREML_EXPERIMENT_ID AZUREML_RUN_ID AZUREML_ROOT_RUN_ID"
)
TASKS_OF_TENSORFLOW = """
import json, os
config = json.loads(os.environ["TF_CONFIG"])
task, workers, servers = config["task"], config["cluster"]["worker"], config["cluster"]["ps"]
print(task["type"], task["index"], "on node", os.environ["AZUREML_CR_NODE_RANK"] + ":", end=" ")
print(len(workers), "workers,", len(servers), "ps,", len({*workers, *servers}), "addresses")
"""

SIGHTS = {
    "its folder is a copy of the code": Sight("code.py", "echo >> code.py; ls -I logs -I outputs", COMMAND_JOB),
    "what .amlignore excludes is not there": Sight("none", "cat secret.txt 2> /dev/null || echo none", CLIENT),
    "outputs and logs are there": Sight("both", "test -d outputs && test -d logs && echo both", COMMAND_JOB),
    "the variables of a shell are not there": Sight("<>", 'echo "<$OF_MY_SHELL>"', COMMAND_JOB),
    "nothing is quoted": Sight("a b", "echo ${{inputs.text}}", COMPONENT, {"inputs": {"text": "a   b"}}, TEXT),
    "true is Python's": Sight("True", "echo ${{inputs.text}}", CLIENT, {"inputs": {"text": True}}, TEXT),
    "a small number is Python's": Sight("1e-05", "echo ${{inputs.text}}", CLIENT, {"inputs": {"text": 0.00001}}, TEXT),
    "an input that the component lacks is dropped": Sight(
        "of the component", "echo ${{inputs.text}}", CLIENT, {"inputs": {"txt": "of the job"}}, TEXT
    ),
    "variables of a component are dropped": Sight(
        "<>", 'echo "<$LEVEL>"', CLIENT, component={"environment_variables": {"LEVEL": "1"}}
    ),
    "variables of a job are there": Sight(
        "<1>", 'echo "<$LEVEL>"', COMMAND_JOB, {"environment_variables": {"LEVEL": 1}}
    ),
    "an optional part without its input is left out": Sight(
        "go",
        "echo go $[[--text ${{inputs.text}}]]",
        COMPONENT,
        component={"inputs": {"text": {"type": "string", "optional": True}}},
    ),
    "an input's folder has its name": Sight(
        "INPUT_rows",
        "basename $(dirname ${{inputs.rows}})",
        "AZURE_ML_INPUT_… in published logs",
        {"inputs": {"rows": {"type": "uri_file", "path": "./rows.csv"}}},
        DATA,
    ),
    "a direct input is an address": Sight(
        "file file",
        "echo $(echo ${{inputs.rows}} | cut -d : -f 1) ${AZURE_ML_INPUT_rows%%:*}",
        "https://learn.microsoft.com/azure/machine-learning/how-to-read-write-data-v2#modes",
        {"inputs": {"rows": {"type": "uri_file", "path": "./rows.csv", "mode": "direct"}}},
        DATA,
    ),
    "an output's path is a variable": Sight(
        "the same", "test $made = ${{outputs.made}} && echo the same", CLIENT, component=MADE
    ),
    "what tracks a run knows it": Sight(
        "all are set",
        f'for name in {OF_TRACKING}; do test -n "${{!name}}" || echo $name; done; echo all are set',
        "azureml-mlflow 1.62.0, constants.py; a published environment of a job",
    ),
    "MLflow's run is the job's": Sight(
        "one run", 'test "$MLFLOW_RUN_ID" = "$AZUREML_RUN_ID" && echo one run', "azureml-mlflow 1.62.0, constants.py"
    ),
    "without a distribution there are no ranks": Sight(
        "<>", 'echo "<$RANK$LOCAL_RANK$WORLD_SIZE$MASTER_ADDR>"', DISTRIBUTED
    ),
    "a parameter server shares a node, and has a port of its own": Sight(
        "worker 0 on node 0: 2 workers, 1 ps, 3 addresses",
        f"python -c '{TASKS_OF_TENSORFLOW}'",
        DISTRIBUTED,
        {
            "resources": {"instance_count": 2},
            "distribution": {"type": "tensorflow", "worker_count": 2, "parameter_server_count": 1},
        },
    ),
    "processes are counted for each node": Sight(
        "0 of 4 on 0",
        "echo $RANK of $WORLD_SIZE on $NODE_RANK",
        DISTRIBUTED,
        {"resources": {"instance_count": 2}},
        TWO_OF_TWO,
    ),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the first process of each job printed, all of one run."""
    folder = tmp_path_factory.mktemp("seen")
    for name, text in {"code.py": "", "secret.txt": "secret\n", ".amlignore": "secret.txt\n.amlignore\n"}.items():
        (folder / "src").mkdir(exist_ok=True)
        (folder / "src" / name).write_text(text)
    (folder / "rows.csv").write_text("1\n")
    jobs = {}
    for number, sight in enumerate(SIGHTS.values()):
        component = {"type": "command", "code": "./src", "environment": "azureml:any:1", "command": sight.command}
        jobs[f"job_{number}"] = {"type": "command", "component": {**component, **sight.component}, **sight.use}
    document = {"type": "pipeline", "settings": {"default_compute": "azureml:cpu"}, "jobs": jobs}
    (folder / "pipeline.yml").write_text(json.dumps(document))
    command = [sys.executable, "-m", "trainyard", "run", "pipeline.yml", "--run-dir", "run"]
    environment = {**os.environ, "OF_MY_SHELL": "there", "RANK": "7", "MASTER_ADDR": "there"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "src" / "code.py").read_text() == "", "the code of the project is left alone"
    record = json.loads((folder / "run" / "run.json").read_text())
    logs = [folder / "run" / record["jobs"][name]["logs"][0] for name in jobs]
    return dict(zip(SIGHTS, (log.read_text().strip() for log in logs), strict=True))


@pytest.mark.parametrize("what", SIGHTS)
def test_a_job_sees_what_it_sees_on_azure_ml(seen: Mapping[str, str], what: str) -> None:
    assert seen[what] == SIGHTS[what].prints, SIGHTS[what].source
