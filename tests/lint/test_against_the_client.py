"""What azure-ai-ml accepts and sends is not an error, unless it does silent damage; what it refuses, lint reports."""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.lint.linter import lint

COMPONENT = """\
name: step
command: echo ${{inputs.a}}
environment: azureml:e:1
inputs: {a: {type: integer, default: 1}}
outputs: {o: {type: uri_folder}}
"""
PIPELINE = """\
type: pipeline
settings: {default_compute: azureml:c}
inputs: {x: 1}
jobs:
  a:
"""
NODE = "    component: ./component.yaml\n"
OWN_COMMAND = "    command: echo hi\n    environment: azureml:e:1\n"

TAKEN_COMPONENTS = [
    "type: Command\n",
    "version: 1\n",
    "is_deterministic: 'yes'\n",
    "resources: {instance_count: '2'}\n",
    "distribution: {type: PyTorch, process_count_per_instance: 2}\n",
    "distribution: {type: mpi}\n",
    "distribution: {type: tensorflow, worker_count: 2, parameter_server_count: 0}\n",
    "code: azureml:foo:1\n",
    "tags: {a: b}\nproperties: {a: 1}\n",
    "queue_settings: {job_tier: Spot, priority: HIGH}\n",
]
TAKEN_JOBS = [
    NODE,
    NODE + "    type: Command\n    display_name: x\n    description: d\n    tags: {a: b}\n    comment: c\n",
    NODE + "    outputs: {o: null}\n",
    NODE + "    inputs: {a: {value: 3}}\n",
    NODE + "    inputs: {a: '${{parent.inputs.x}}'}\n",
    NODE + "    inputs: {a: {path: '${{parent.inputs.x}}', mode: download}}\n",
    NODE + "    environment_variables: {A: 1, B: '${{parent.inputs.x}}'}\n",
    NODE + "    limits: {timeout: 3}\n    identity: {type: managed}\n    queue_settings: {job_tier: spot}\n",
    NODE + "    services: {s: {type: ssh, ssh_public_keys: x}}\n",
    NODE + "    distribution: {type: pytorch, process_count_per_instance: '${{parent.inputs.x}}'}\n",
    NODE + "    resources: {instance_count: '${{parent.inputs.x}}', shm_size: 64g}\n",
    OWN_COMMAND,
    OWN_COMMAND + "    inputs: {a: 3, b: true, c: x, d: {type: uri_folder, path: 'azureml:d:1'}}\n",
    OWN_COMMAND + "    outputs: {a: null, b: {type: uri_folder, mode: upload}}\n",
    OWN_COMMAND + "    compute: '${{parent.inputs.x}}'\n",
]
REFUSED_COMPONENTS = [
    "outputs:\n",
    "description:\n",
    "tags: {a: 1}\n",
    "display_name: 3\n",
    "resources: {instance_count: many}\n",
    "distribution: {type: torch}\n",
    "additional_includes: ../x\n",
    "code: ./none\n",
]
REFUSED_JOBS = [
    NODE + "    inputs:\n",
    NODE + "    inputs: {a: [1]}\n",
    NODE + "    compute: 3\n",
    NODE + "    outputs: {o: {type: uri_folder, mode: ro_mount}}\n",
    NODE + "    distribution: {type: pytorch, foo: 1}\n",
    NODE + "    resources: {instance_count: 2, foo: 1}\n",
    OWN_COMMAND + "    foo: 1\n",
    OWN_COMMAND + "    is_deterministic: false\n",
    OWN_COMMAND + "    code: ./none\n",
    NODE + "foo: 1\n",
    NODE + "limits: {timeout: 3}\n",
    NODE + "description: 3\n",
    NODE + "  B-c:\n    component: ./component.yaml\n",
]


def client_takes(file: Path, kind: str) -> bool:
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from azure.ai.ml.entities import _load_functions

            loaded = getattr(_load_functions, f"load_{kind}")(file)
            if kind.endswith("deployment"):
                loaded._validate()  # which raises
                return True
            if kind == "job" and loaded.type in ("command", "sweep", "pipeline"):
                # What is sent, for which the names of inputs and outputs are checked.
                (loaded._to_job() if hasattr(loaded, "_to_job") else loaded)._to_rest_object()
            # Sweeps, schedules and AutoML's jobs are checked as they are loaded.
            return not hasattr(loaded, "_validate") or bool(loaded._validate(raise_error=False).passed)
    except Exception:
        # The client has many classes of errors, and raises plain TypeErrors too.
        return False
    finally:
        logging.disable(logging.NOTSET)


def has_errors(file: Path) -> bool:
    return any(d.severity == "error" for d in lint([file]).diagnostics)


def write(folder: Path, kind: str, text: str) -> Path:
    (folder / "component.yaml").write_text("type: command\n" + COMPONENT)
    file = folder / ("tried.yaml" if kind == "component" else "pipeline.yaml")
    if kind == "component":
        keys = {line.split(":")[0] for line in text.splitlines() if not line.startswith(" ")}
        kept = "".join(f"{line}\n" for line in COMPONENT.splitlines() if line.split(":")[0] not in keys)
        file.write_text(("" if "type" in keys else "type: command\n") + kept + text)
    else:
        file.write_text(PIPELINE + text)
    return file


@pytest.mark.parametrize("type_line", ["", "type:\n"], ids=["absent", "empty"])
def test_a_pipeline_without_a_type_is_refused_by_both(tmp_path: Path, type_line: str) -> None:
    file = write(tmp_path, "job", NODE)
    assert client_takes(file, "job")
    file.write_text(file.read_text().replace("type: pipeline\n", type_line))
    assert not client_takes(file, "job")
    (rule,) = [d.rule for d in lint([file]).diagnostics if d.severity == "error"]
    assert rule == ("AML104" if type_line else "AML102")


def test_a_component_without_a_type_is_a_command_to_both(tmp_path: Path) -> None:
    file = tmp_path / "component.yaml"
    file.write_text(COMPONENT)
    assert client_takes(file, "component")
    assert not has_errors(file)


SWEEP = """\
type: sweep
trial: {command: 'python x.py ${{search_space.a}}', environment: azureml:e:1}
search_space: {a: {type: uniform, min_value: 0, max_value: 1}}
objective: {goal: minimize, primary_metric: loss}
limits: {max_total_trials: 4}
sampling_algorithm: random
compute: azureml:c
"""
PARALLEL = """\
type: parallel
name: p
inputs: {d: {type: uri_folder}}
outputs: {o: {type: uri_file}}
input_data: ${{inputs.d}}
mini_batch_size: "10"
task: {type: run_function, code: ., entry_script: x.py, environment: azureml:e:1, append_row_to: '${{outputs.o}}'}
"""
SPARK = """\
type: spark
name: s
inputs: {d: {type: uri_folder, mode: direct}}
code: .
entry: {file: x.py}
args: --d ${{inputs.d}}
conf: {spark.driver.cores: 1, spark.driver.memory: 2g, spark.executor.cores: 1, spark.executor.memory: 2g,
  spark.executor.instances: 1}
"""
NO_COMPUTE = "type: pipeline\njobs:\n  a: {component: ./component.yaml}\n"
WITH_COMPUTE = "type: pipeline\nsettings: {default_compute: serverless}\njobs:\n  a:\n"
AUTOML = (
    WITH_COMPUTE
    + """\
    type: automl
    task: classification
    primary_metric: accuracy
    target_column_name: y
    training_data: {type: mltable, path: 'azureml:d:1'}
"""
)
COPY = (
    WITH_COMPUTE
    + """\
    type: data_transfer
    task: copy_data
    data_copy_mode: merge_with_overwrite
    inputs: {f: {type: uri_file, path: 'azureml:d:1'}}
    outputs: {o: {type: uri_file}}
"""
)
IMPORT = (
    WITH_COMPUTE
    + """\
    type: data_transfer
    task: import_data
    source: {type: database, connection: 'azureml:c', query: q}
    outputs: {sink: {type: mltable}}
"""
)
SPARK_JOB = """\
type: spark
code: .
entry: {file: x.py}
conf: {spark.driver.cores: 1, spark.driver.memory: 2g, spark.executor.cores: 1, spark.executor.memory: 2g,
  spark.executor.instances: 1}
resources: {instance_type: standard_e4s_v3, runtime_version: '3.4'}
"""
COMMAND_JOB = "type: command\ncommand: echo\nenvironment: azureml:e:1\ncompute: azureml:c\n"
NESTED = "type: pipeline\nname: n\njobs: {a: {component: ./component.yaml}}\n"
AUTOML_JOB = """\
type: automl
name: by-automl
compute: azureml:c
task: classification
primary_metric: accuracy
target_column_name: y
training_data: {type: mltable, path: 'azureml:d:1'}
"""
EXPORT = (
    WITH_COMPUTE
    + """\
    type: data_transfer
    task: export_data
    inputs: {source: {type: uri_file, path: 'azureml:d:1'}}
    sink: {type: database, table_name: t, connection: 'azureml:c'}
"""
)
SCHEDULE = """\
$schema: https://azuremlschemas.azureedge.net/latest/schedule.schema.json
name: weekly
trigger: {type: cron, expression: '15 10 * * 1'}
create_job: {type: pipeline, job: 'azureml:trained_last_week'}
"""
CONTROLLED = """\
type: command
name: decide
version: 1
command: echo ${{outputs.rounds}}
environment: azureml:e:1
outputs: {rounds: {type: integer, is_control: true, early_available: true}}
"""
TAKEN_FILES = [
    ("job", SWEEP),
    # What is not known of a component in place is dropped, as in a file of its own.
    ("job", WITH_COMPUTE + "    component: {type: command, owner: me, command: ls, environment: 'azureml:e:1'}\n"),
    ("job", SWEEP.replace("sampling_algorithm: random", "sampling_algorithm: {type: random, seed: 3}")),
    ("job", SWEEP + "early_termination: {type: bandit, slack_factor: 0.1, evaluation_interval: 1}\n"),
    ("job", SWEEP.replace("goal: minimize", "goal: Minimize")),
    ("component", PARALLEL),
    ("component", PARALLEL + "mini_batch_error_threshold: -1\nlogging_level: INFO\nretry_settings: {timeout: 3}\n"),
    ("component", SPARK),
    ("component", NESTED),
    ("component", NESTED + "is_deterministic: false\nversion: 3\ninputs: {a: {type: number, default: 3}}\n"),
    ("job", COMMAND_JOB),
    ("job", AUTOML),
    ("job", AUTOML.replace("accuracy", "AUC_weighted")),
    ("job", COPY),
    ("job", IMPORT),
    ("job", SPARK_JOB),
    ("job", COMMAND_JOB + "services: {b: {type: Custom, port: 8000}, c: {type: tensor_board, log_dir: x}}\n"),
    ("job", WITH_COMPUTE.replace("}", ", datastore: x}") + OWN_COMMAND),
    ("job", COMMAND_JOB + "identity: {type: UserIdentity}\nservices: {b: {type: vs_code}}\n"),
    ("job", COMMAND_JOB + "inputs: {a: 3, b: {type: uri_file, path: https://x.org/a.csv}}\noutputs: {o: null}\n"),
    (
        "job",
        "type: pipeline\nsettings: {default_compute: azureml:c}\njobs:\n  a: {type: pipeline, component: ./n.yaml}\n",
    ),
    ("job", AUTOML_JOB),
    ("job", EXPORT),
    ("schedule", SCHEDULE),
    ("component", CONTROLLED),
    ("job", "$schema: http://azureml/sdk-2-0/SparkJob.json\nname: wrangle\ninputs: {share: 0.5}\n" + SPARK_JOB),
    ("job", "$schema: http://azureml/sdk-2-0/SparkComponent.json\nname: wrangle\n" + SPARK_JOB),
    ("job", WITH_COMPUTE + NODE + "    environment: azureml:e:1\n"),
    ("job", "description: d\ndescription: d\n" + COMMAND_JOB),
    ("job", COMMAND_JOB + "inputs: {d: {path: /subscriptions/s/resourceGroups/r/data/d/versions/2}}\n"),
    ("job", WITH_COMPUTE + "    component: azureml:score:1\n    inputs: {run_name: '${{parent.name}}'}\n"),
]
REFUSED_FILES = [
    ("job", SWEEP.replace("goal: minimize", "goal: minimise")),
    ("job", SWEEP.replace("type: uniform", "type: unifrom")),
    ("job", SWEEP.replace("sampling_algorithm: random", "sampling_algorithm: bayes")),
    ("job", SWEEP.replace("max_total_trials", "max_trials")),
    ("job", SWEEP.replace("type: sweep", "type: Sweep")),
    ("job", SWEEP.replace("objective: {goal: minimize, primary_metric: loss}\n", "")),
    ("component", PARALLEL.replace("type: run_function", "type: run_functions")),
    ("job", NO_COMPUTE),
    ("job", COMMAND_JOB + "resources: {instance_count: '${{inputs.n}}'}\ninputs: {n: 2}\n"),
    ("job", COMMAND_JOB + "services: {b: {job_service_type: vs_code}}\n"),
    ("job", AUTOML.replace("accuracy", "mae")),
    ("job", AUTOML.replace("    target_column_name: y\n", "")),
    ("job", COPY.replace("merge_with_overwrite", "overwrite")),
    ("job", IMPORT.replace("connection", "connction")),
    ("job", SPARK_JOB.replace("spark.driver.memory: 2g, ", "")),
    ("job", COMMAND_JOB.replace("type: command", "type: Command")),
    ("job", COMMAND_JOB + "identity: {type: user}\n"),
    ("job", COMMAND_JOB + "inputs: {a: {type: integer, value: 3}}\n"),
    ("job", "type: Pipeline\njobs:\n  a: {component: ./component.yaml}\n"),
    ("job", "type: pipeline\ninputs: {n: {type: integer, default: 3}}\njobs:\n  a: {component: ./component.yaml}\n"),
    ("job", AUTOML_JOB.replace("accuracy", "mae")),
    ("job", AUTOML_JOB.replace("task: classification\n", "")),
    ("job", EXPORT.replace("type: database, table_name: t", "type: file_system, path: s3://b/t")),
    ("job", SPARK_JOB.replace("instances: 1}", "instances: 1, spark.dynamicAllocation.minExecutors: 1}")),
    ("job", SWEEP.replace("type: sweep\n", "")),
    ("schedule", SCHEDULE.replace("type: pipeline, ", "")),
    ("component", CONTROLLED.replace("type: integer", "type: uri_folder")),
]
CLIENT_CASES = Path(__file__).parent / "client_cases"
# What is true of none of these, though it looks so at a glance.
SILENT_FILES = [
    COMMAND_JOB + "environment_variables: {CONNECTION_STRING: 'InstrumentationKey=${INSTRUMENTATION_KEY}'}\n",
    COMMAND_JOB.replace("echo", "echo ${{inputs.d}}") + "inputs: {d: {path: /subscriptions/s/data/d/versions/2}}\n",
    "inputs: {watch: 'true'}\n"
    + WITH_COMPUTE
    + "    command: echo ${{inputs.w}}\n    environment: azureml:e:1\n    inputs: {w: '${{parent.inputs.watch}}'}\n",
    WITH_COMPUTE
    + "    component: ./writes.yaml\n    outputs: {o: {type: mltable}}\n"
    + "  b:\n    component: ./reads.yaml\n    inputs: {t: '${{parent.jobs.a.outputs.o}}'}\n",
]
WRITES = "name: w\ncommand: ls ${{outputs.o}}\nenvironment: azureml:e:1\noutputs: {o: {type: uri_folder}}\n"
READS = "name: r\ncommand: ls ${{inputs.t}}\nenvironment: azureml:e:1\ninputs: {t: {type: mltable}}\n"
CASES = [("component", text) for text in TAKEN_COMPONENTS] + [("job", text) for text in TAKEN_JOBS]
REFUSED = [("component", text) for text in REFUSED_COMPONENTS] + [("job", text) for text in REFUSED_JOBS]


@pytest.mark.parametrize(("kind", "text"), CASES)
def test_what_the_client_takes_is_no_error(tmp_path: Path, kind: str, text: str) -> None:
    file = write(tmp_path, kind, text)
    assert client_takes(file, kind)
    assert not has_errors(file), lint([file]).diagnostics


def write_whole(folder: Path, text: str) -> Path:
    (folder / "component.yaml").write_text("type: command\n" + COMPONENT)
    (folder / "n.yaml").write_text(NESTED)
    (folder / "x.py").write_text("def init():\n    pass\n\n\ndef run(mini_batch):\n    return mini_batch\n")
    file = folder / "tried.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(("kind", "text"), TAKEN_FILES)
def test_whole_files_that_the_client_takes_have_no_error(tmp_path: Path, kind: str, text: str) -> None:
    file = write_whole(tmp_path, text)
    assert client_takes(file, kind)
    assert not has_errors(file), lint([file]).diagnostics


@pytest.mark.parametrize(("kind", "text"), REFUSED_FILES)
def test_whole_files_that_the_client_refuses_have_one(tmp_path: Path, kind: str, text: str) -> None:
    file = write_whole(tmp_path, text)
    assert not client_takes(file, kind)
    assert has_errors(file)


@pytest.mark.parametrize("text", SILENT_FILES, ids=["filled_in", "by_id", "one_word", "own_type"])
def test_what_is_right_and_only_looks_wrong_is_passed_over(tmp_path: Path, text: str) -> None:
    file = write_whole(tmp_path, text)
    (tmp_path / "writes.yaml").write_text(WRITES)
    (tmp_path / "reads.yaml").write_text(READS)
    assert client_takes(file, "job")
    assert [d for d in lint([file]).diagnostics if d.severity != "info"] == []


def test_a_repeated_key_is_an_error_only_where_something_is_lost(tmp_path: Path) -> None:
    file = write_whole(tmp_path, "display_name: d\ndisplay_name: d\n" + COMMAND_JOB)
    assert [(d.rule, d.severity) for d in lint([file]).diagnostics] == [("AML007", "warning")]
    file.write_text("display_name: d\ndisplay_name: e\n" + COMMAND_JOB)
    assert [(d.rule, d.severity) for d in lint([file]).diagnostics] == [("AML007", "error")]


@pytest.mark.parametrize(("kind", "text"), REFUSED)
def test_what_the_client_refuses_is_found(tmp_path: Path, kind: str, text: str) -> None:
    file = write(tmp_path, kind, text)
    assert not client_takes(file, kind)
    assert has_errors(file)


def cases(name: str) -> list[Any]:
    """The files of a list, each with its kind and the rules that report it."""
    return [
        pytest.param(case["kind"], case["text"], case.get("rules", []), id=case["name"])
        for case in yaml.safe_load((CLIENT_CASES / f"{name}.yaml").read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(("kind", "text", "rules"), [*cases("refused"), *cases("taken")])
def test_the_client_refuses_what_has_an_error_and_takes_the_rest(
    tmp_path: Path, kind: str, text: str, rules: list[str]
) -> None:
    shutil.copytree(CLIENT_CASES / "files", tmp_path, dirs_exist_ok=True)
    file = tmp_path / "tried.yml"
    file.write_text(text)
    assert client_takes(file, kind) is (rules == [])
    assert sorted({d.rule for d in lint([file]).diagnostics if d.severity == "error"}) == rules


# The files of a project with endpoints, deployments and stores, by what loads them.
SERVING = Path(__file__).parent / "projects" / "serving"
LOADED_AS = {
    "online_endpoint": ("endpoint", "kubernetes_endpoint"),
    "batch_endpoint": ("batch_endpoint",),
    "online_deployment": ("blue", "green", "canary"),
    "model_batch_deployment": ("forest",),
    "batch_deployment": ("legacy",),
    "pipeline_component_batch_deployment": ("steps",),
    "datastore": ("blob_store", "file_store", "lake_store"),
    "workspace": ("workspace",),
    "registry": ("registry",),
    "feature_store": ("feature_store",),
    "feature_set": ("strokes",),
    "feature_store_entity": ("writer",),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in LOADED_AS.items() for name in names])
def test_what_serves_is_taken_by_both_until_a_key_is_unknown(kind: str, name: str, tmp_path: Path) -> None:
    project = tmp_path / "serving"
    shutil.copytree(SERVING, project)
    file = project / f"{name}.yml"
    assert client_takes(file, kind)
    assert not has_errors(file)
    file.write_text(file.read_text() + "of_no_such_name: 1\n")
    assert not client_takes(file, kind)
    assert has_errors(file)
