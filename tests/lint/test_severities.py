"""Severity follows certainty: what fails in every case is an error, what may be meant a warning or a note."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.lint.linter import lint

COMMAND = "type: command\nname: {name}\ncommand: {command}\ncode: ./src\nenvironment: azureml:torch:3\n"
JOB = "type: command\ncommand: echo ${{inputs.x}}\nenvironment: azureml:torch:3\ncompute: azureml:cpus\n"
SCRIPT = "import sys\n\nprint(sys.argv)\n"


def found(folder: Path, files: dict[str, str]) -> dict[str, list[tuple[str, str, int]]]:
    """The rules, severities and lines of what lint finds in files, by file; the first one is named to it."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    by_file: dict[str, list[tuple[str, str, int]]] = {}
    for each in lint([folder / next(iter(files))]).diagnostics:
        name = each.span.file.relative_to(folder).as_posix()
        by_file.setdefault(name, []).append((each.rule, each.severity, each.span.line))
    return by_file


@pytest.mark.parametrize(
    ("following", "severity"), [("--epochs 3", "error"), ("python evaluate.py", "warning")], ids=["flag", "program"]
)
def test_a_blank_behind_a_backslash_is_an_error_where_flags_follow(
    following: str, severity: str, tmp_path: Path
) -> None:
    text = COMMAND.replace("{command}", "|\n  python -m train \\ \n    {following}").replace("code: ./src\n", "")
    files = {"train.yaml": text.format(name="train", following=following)}
    assert found(tmp_path, files) == {"train.yaml": [("AML554", severity, 4)]}


SWEEP = """\
type: sweep
trial:
  command: python train.py --rate ${{search_space.rate}}
  code: ./src
  environment: azureml:torch:3
compute: azureml:cpus
search_space:
  rate: {type: uniform, min_value: 0.1, max_value: 0.5}
limits: {max_total_trials: 20, max_concurrent_trials: 4}
objective: {goal: minimize, primary_metric: val_loss}
early_termination: {type: bandit, slack_factor: 0.1}
sampling_algorithm: """
LOGS = SCRIPT.replace("import sys", "import sys\n\nimport mlflow") + "mlflow.log_metric('val_loss', 1.0)\n"


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("bayesian", {"sweep.yaml": [("AML313", "info", 11)]}),
        ("{type: Bayesian}", {"sweep.yaml": [("AML313", "info", 11)]}),
        ("random", {}),
        ("{type: random, seed: 3}", {}),
    ],
)
def test_bayesian_sampling_with_early_termination_is_a_note(
    algorithm: str, expected: dict[str, list[tuple[str, str, int]]], tmp_path: Path
) -> None:
    assert found(tmp_path, {"sweep.yaml": f"{SWEEP}{algorithm}\n", "src/train.py": LOGS}) == expected


@pytest.mark.parametrize("name", ["my train", "Train", "train-ddp", "1st_train"])
def test_a_component_that_the_client_does_not_load_is_an_error(name: str, tmp_path: Path) -> None:
    files = {"train.yaml": COMMAND.format(name=name, command="python train.py"), "src/train.py": SCRIPT}
    assert found(tmp_path, files) == {"train.yaml": [("AML109", "error", 2)]}


def test_the_client_takes_any_name_where_a_pipeline_names_the_file(tmp_path: Path) -> None:
    pipeline = (
        "type: pipeline\nsettings: {default_compute: azureml:cpus}\njobs:\n  train:\n    component: ./train.yaml\n"
    )
    component = COMMAND.format(name="my train", command="python train.py")
    files = {"pipeline.yaml": pipeline, "train.yaml": component, "src/train.py": SCRIPT}
    assert found(tmp_path, files) == {"train.yaml": [("AML109", "warning", 2)]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("name: my train\n", {"components/train.yaml": [("AML109", "warning", 2)]}), ("is_deterministic: true\n", {})],
    ids=["bad", "none"],
)
def test_a_name_is_judged_alike_where_the_component_is_linted_without_its_pipeline(
    name: str, expected: dict[str, list[tuple[str, str, int]]], tmp_path: Path
) -> None:
    component = COMMAND.format(name="NAME", command="python train.py").replace("name: NAME\n", name)
    files = {
        "components/train.yaml": component.replace("./src", "../src"),
        "pipelines/train.yaml": "type: pipeline\njobs:\n  train: {component: ../components/train.yaml}\n",
        "src/train.py": SCRIPT,
        ".trainyard.toml": "",
    }
    assert found(tmp_path, files) == expected


@pytest.mark.parametrize(
    ("instruction", "severity"),
    [
        ("COPY requirement.txt /tmp/", "error"),
        ("CPY requirements.txt /tmp/", "error"),
        ("RUN pip instal numpy", "error"),
        ("RUN pip install torch>=2.1 numpy", "warning"),
        ("RUN conda activate train", "warning"),
        ("RUN source /opt/train/bin/activate && pip list", "warning"),
        ("RUN apt-get install -y git", "warning"),
        ("ENV PATH=/opt/train/bin", "warning"),
        ('ENV PATH "/opt/train/bin:/opt/tools"', "warning"),
        ("RUN cd /opt && export CUDA_HOME=/usr/local/cuda", "warning"),
        ("COPY requirements.txt requirements.txt /tmp/needs", "error"),
    ],
)
def test_an_image_that_cannot_be_built_is_an_error(instruction: str, severity: str, tmp_path: Path) -> None:
    files = {
        "environment.yaml": "name: torch\nbuild: {path: ./docker}\n",
        "docker/Dockerfile": f"FROM python:3.12\n{instruction}\n",
        "docker/requirements.txt": "numpy\n",
    }
    assert found(tmp_path, files) == {"docker/Dockerfile": [("AML420", severity, 2)]}


@pytest.mark.parametrize(
    ("path", "findings"),
    [
        ("azureml://datastore/raw/paths/taxi", [("AML405", "error", 4)]),
        ("azureml://datastores/raw/path/taxi", [("AML405", "error", 4)]),
        ("azureml://newkind/raw/paths/taxi", [("AML405", "warning", 4)]),
        ("azureml://datastores/raw/paths/taxi", []),
        ("taxi-data@latest", [("AML405", "error", 4)]),
        ("azureml:taxi-data:1", [("AML405", "error", 4)]),
        ("./taxi", []),
    ],
)
def test_an_asset_is_where_its_path_leads(path: str, findings: list[tuple[str, str, int]], tmp_path: Path) -> None:
    files = {"taxi.yaml": f"name: taxi\nversion: '1'\ntype: uri_folder\npath: {path}\n"}
    assert found(tmp_path, files) == ({"taxi.yaml": findings} if findings else {})


@pytest.mark.parametrize(
    ("path", "findings"),
    [
        ("azureml://datastore/raw/paths/taxi", [("AML405", "error", 6)]),
        ("azureml:taxi-data", [("AML409", "error", 6)]),
        ("./days/2026-11-24T10:00", [("AML405", "error", 6)]),
        # The client takes both for the registered asset.
        ("azureml:taxi-data@latest", []),
        ("taxi-data@latest", []),
    ],
)
def test_a_job_reads_what_the_client_resolves(path: str, findings: list[tuple[str, str, int]], tmp_path: Path) -> None:
    files = {"job.yaml": f"{JOB}inputs:\n  x: {{type: uri_folder, path: '{path}'}}\n"}
    assert found(tmp_path, files) == ({"job.yaml": findings} if findings else {})


@pytest.mark.parametrize(
    ("environment", "severity"), [("azureml:torch", "error"), ("azureml:AzureML-pytorch-1.9", "warning")]
)
def test_the_client_refuses_an_environment_without_version(environment: str, severity: str, tmp_path: Path) -> None:
    text = COMMAND.format(name="train", command="python train.py").replace("azureml:torch:3", environment)
    assert found(tmp_path, {"train.yaml": text, "src/train.py": SCRIPT}) == {"train.yaml": [("AML409", severity, 5)]}


@pytest.mark.parametrize(
    ("expression", "severity"),
    [("0 3 * * 8", "error"), ("0 24 * * *", "error"), ("0 3 * * 7", "warning"), ("0 3 31 2 *", "warning")],
)
def test_a_time_that_no_clock_has_is_an_error(expression: str, severity: str, tmp_path: Path) -> None:
    text = f'name: nightly\ntrigger:\n  type: cron\n  expression: "{expression}"\ncreate_job: azureml:forecast:1\n'
    assert found(tmp_path, {"nightly.yaml": text}) == {"nightly.yaml": [("AML318", severity, 4)]}


def test_a_component_that_ignores_many_inputs_has_one_note(tmp_path: Path) -> None:
    inputs = "inputs:\n" + "".join(f"  input_{letter}: {{type: integer, default: 1}}\n" for letter in "abcd")
    files = {"train.yaml": COMMAND.format(name="train", command="python train.py") + inputs, "src/train.py": SCRIPT}
    assert found(tmp_path, files) == {"train.yaml": [("AML211", "info", 7)]}


@pytest.mark.parametrize(("value", "severity"), [("${{parent.jobs.first.outputs.out}}", "info"), ("2", "warning")])
def test_data_that_a_job_waits_for_may_be_unused(value: str, severity: str, tmp_path: Path) -> None:
    kind = "uri_folder" if severity == "info" else "integer"
    pipeline = f"""\
type: pipeline
settings: {{default_compute: azureml:cpus}}
jobs:
  first:
    type: command
    command: echo ${{{{outputs.out}}}}
    environment: azureml:torch:3
    outputs: {{out: {{type: uri_folder}}}}
  train:
    component: ./train.yaml
    inputs: {{before: "{value}"}}
"""
    component = COMMAND.format(name="train", command="python train.py") + f"inputs:\n  before: {{type: {kind}}}\n"
    files = {"pipeline.yaml": pipeline, "train.yaml": component, "src/train.py": SCRIPT}
    assert ("AML211", severity, 7) in found(tmp_path, files)["train.yaml"]


@pytest.mark.parametrize(("command", "severity"), [("echo hello && sleep 5", "info"), ("python -m train", "warning")])
def test_a_stub_need_not_write(command: str, severity: str, tmp_path: Path) -> None:
    text = COMMAND.format(name="train", command=command).replace("code: ./src\n", "")
    files = {"train.yaml": f"{text}outputs:\n  model: {{type: uri_folder}}\n"}
    assert found(tmp_path, files) == {"train.yaml": [("AML212", severity, 6)]}


def test_inputs_that_no_job_reads_are_one_warning(tmp_path: Path) -> None:
    pipeline = """\
type: pipeline
settings: {default_compute: azureml:cpus}
inputs: {epochs: 3, rounds: 4, left_over: 5}
jobs:
  train:
    component: ./train.yaml
    inputs: {epochs: 1, rounds: 2}
"""
    component = COMMAND.format(name="train", command="python train.py ${{inputs.epochs}} ${{inputs.rounds}}")
    component += "inputs:\n  epochs: {type: integer}\n  rounds: {type: integer}\n"
    files = {"pipeline.yaml": pipeline, "train.yaml": component, "src/train.py": SCRIPT}
    assert found(tmp_path, files) == {"pipeline.yaml": [("AML214", "warning", 3), ("AML214", "info", 3)]}


@pytest.mark.parametrize(
    ("given", "taken", "severity"), [("uri_file", "uri_folder", "info"), ("uri_folder", "uri_file", "warning")]
)
def test_a_file_for_a_folder_is_a_note(given: str, taken: str, severity: str, tmp_path: Path) -> None:
    pipeline = f"""\
type: pipeline
settings: {{default_compute: azureml:cpus}}
inputs:
  table: {{type: {given}, path: azureml:table:1}}
jobs:
  train:
    component: ./train.yaml
    inputs: {{table: "${{{{parent.inputs.table}}}}"}}
"""
    component = COMMAND.format(name="train", command="python train.py ${{inputs.table}}")
    component += f"inputs:\n  table: {{type: {taken}}}\n"
    files = {"pipeline.yaml": pipeline, "train.yaml": component, "src/train.py": SCRIPT}
    assert found(tmp_path, files) == {"pipeline.yaml": [("AML307", severity, 8)]}


SCORE = """\
import os


def init():
    global model
    model = os.environ["AZUREML_MODEL_DIR"]


def run(data):
    return [model, data]
"""
PARALLEL = """\
type: parallel
name: score
inputs:
  images: {type: uri_folder}
input_data: ${{inputs.images}}
task: {type: run_function, code: ./src, entry_script: score.py, environment: "azureml:torch:3"}
mini_batch_size: "10"
"""
DEPLOYMENT = """\
name: blue
endpoint_name: digits
model: azureml:digits:3
code_configuration: {code: ./src, scoring_script: score.py}
environment: azureml:torch:3
instance_type: Standard_DS3_v2
instance_count: 1
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("    global model\n", "", "AML518"),
        ("    return [model, data]", "    return [modle, data]", "AML518"),
        ("    return [model, data]", "    print data", "AML514"),
    ],
)
@pytest.mark.parametrize(("text", "line"), [(DEPLOYMENT, 4), (PARALLEL, 6)], ids=["deployment", "parallel"])
def test_the_script_that_azureml_imports_is_checked(
    tmp_path: Path, text: str, line: int, old: str, new: str, expected: str
) -> None:
    right = {"score.yaml": text, "src/score.py": SCORE}
    assert found(tmp_path, right) == {}
    assert found(tmp_path, {**right, "src/score.py": SCORE.replace(old, new)}) == {
        "score.yaml": [(expected, "warning", line)]
    }


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (JOB + "inputs:\n  x: {type: uri_folder, data: azureml:text:1}\n", "path"),
        (JOB + "inputs: {x: 1}\nenv_vars: {NCCL_DEBUG: INFO}\n", "environment_variables"),
        (JOB + "inputs: {x: 1}\nresources: {node_count: 2}\n", "instance_count"),
        (JOB.replace("compute: ", "compute_target: ") + "inputs: {x: 1}\n", "compute"),
        ("name: cpus\ntype: amlcompute\nsize: Standard_D8s_v5\nmax_nodes: 2\n", "max_instances"),
    ],
)
def test_a_key_of_another_program_is_known_by_its_meaning(tmp_path: Path, text: str, meant: str) -> None:
    (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
    assert [each.hint for each in lint([tmp_path]).diagnostics if each.rule == "AML101"] == [f"Did you mean '{meant}'?"]


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ("[torch, transformers]", [("AML509", "warning", 4)]),
        ("[torch, transformers, accelerate]", []),
        ("[torch, transformers, peft]", []),
        ("[torch, transformers==4.20.0]", []),
        ("[torch, transformers==4.28.1]", []),
        ("[torch, 'transformers~=4.26.0']", []),
        ("[torch, 'transformers>=4.20,<4.28']", []),
        ("[torch, 'transformers<4.29']", []),
        ("[torch, 'transformers>=4.20,!=4.30.0']", []),
        ("[torch, 'transformers>=4.29,<5']", [("AML509", "warning", 4)]),
        ("[torch, transformers==4.46.1]", [("AML509", "warning", 4)]),
        ("[torch, 'transformers[torch]']", []),
    ],
)
def test_the_trainer_of_transformers_needs_accelerate(
    packages: str, expected: list[tuple[str, str, int]], tmp_path: Path
) -> None:
    files = {
        "job.yaml": "type: command\ncode: ./src\ncompute: azureml:gpus\ncommand: python train.py\nenvironment:\n"
        "  image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04\n"
        f"  conda_file: {{channels: [conda-forge], dependencies: [python=3.11, pip, {{pip: {packages}}}]}}\n",
        "src/train.py": "from transformers import Trainer\n\nTrainer().train()\n",
    }
    assert found(tmp_path, files).get("job.yaml", []) == expected
