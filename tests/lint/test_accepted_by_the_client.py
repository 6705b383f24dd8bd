"""What Azure ML's client accepts, or refuses only after a while, and what lint says of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from azure.ai.ml import load_component, load_data, load_environment, load_online_endpoint
from marshmallow import ValidationError

from trainyard.lint.linter import lint

COMPONENT = """\
type: command
name: train
code: ./src
environment: azureml:torch:3
command: python train.py
"""
CONDA = """\
type: command
name: train
command: python train.py
environment:
  image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04
  conda_file:
    channels: [conda-forge]
    dependencies:
      - python=3.11
      - pip
      - pip: %s
"""
WRITES = """\
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--model")
parser.add_argument("--name", default="best")
args = parser.parse_args()
with open(args.model, "w") as file:
    file.write("trained")
"""
HEAD = """\
import argparse
import os
from pathlib import Path
"""


def rules(folder: Path, files: dict[str, str]) -> list[tuple[str, str]]:
    """What lint reports for the first of these files: rules, with their severities."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return [(found.rule, found.severity) for found in lint([folder / next(iter(files))]).diagnostics]


@pytest.mark.parametrize(
    ("includes", "files", "expected"),
    [
        ("[a/common]", ["src/common/x.py", "a/common/y.py"], [("AML108", "error")]),
        ("[a/train.py]", ["a/train.py"], [("AML108", "error")]),
        ("[a/common, b/common]", ["a/common/x.py", "b/common/x.py"], [("AML108", "warning")]),
        ("[a/x.py, b/x.py]", ["a/x.py", "b/x.py"], [("AML108", "warning")]),
        ("[a/common, b/common]", ["a/common/x.py", "b/common/y.py"], []),
        ("[a/common, b/shared]", ["a/common/x.py", "b/shared/x.py"], []),
        ("[{type: git, git_url: u, branch: b}, {type: artifact, name: n, version: '1'}]", ["src/x.py"], []),
    ],
)
def test_additional_includes_of_the_same_name_clash(
    tmp_path: Path, includes: str, files: list[str], expected: list[tuple[str, str]]
) -> None:
    component = {"train.yml": f"{COMPONENT}additional_includes: {includes}\n", "src/train.py": "print(1)\n"}
    assert rules(tmp_path, {**component, **dict.fromkeys(files, "print(2)\n")}) == expected


@pytest.mark.parametrize(
    ("pip", "expected"),
    [
        ("[torch==2.8.0 numpy==2.0.0]", [("AML416", "error")]),
        ('["torch==2.8.0, numpy"]', [("AML416", "error")]),
        ("\n        - torch\n          numpy", [("AML416", "error")]),
        ("torch==2.8.0", [("AML103", "error")]),
        ("['torch==2.8.0 ; python_version > \"3\"', 'numpy >=1, <3', 'torch-geometric @ git+https://example.com']", []),
        ("[torch --pre, '--extra-index-url https://example.com', 'transformers[torch] == 4.50.0']", []),
    ],
)
def test_packages_in_one_text_are_found(tmp_path: Path, pip: str, expected: list[tuple[str, str]]) -> None:
    assert rules(tmp_path, {"train.yml": CONDA % pip}) == expected


@pytest.mark.parametrize(("mode", "expected"), [("direct", [("AML511", "warning")]), ("rw_mount", [])])
def test_an_output_with_an_address_cannot_be_opened(tmp_path: Path, mode: str, expected: list[tuple[str, str]]) -> None:
    job = f"{COMPONENT} --model ${{{{outputs.model}}}}\noutputs: {{model: {{type: uri_file, mode: {mode}}}}}\n"
    job = job.replace("train.py\n ", "train.py ")
    assert rules(tmp_path, {"train.yml": job, "src/train.py": WRITES}) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("os.path.join(args.model, 'model.pt')", [("AML511", "warning")]),
        ("args.model + '/model.pt'", [("AML511", "warning")]),
        ("f'{args.model}/model.pt'", [("AML511", "warning")]),
        ("Path(args.model) / 'model.pt'", [("AML511", "warning")]),
        ("f'{args.name}/model.pt'", []),
        ("f'{args.model}_{args.name}'", []),
    ],
)
def test_a_file_within_an_output_with_an_address_cannot_be_opened(
    tmp_path: Path, path: str, expected: list[tuple[str, str]]
) -> None:
    job = COMPONENT.replace("train.py", "train.py --model ${{outputs.model}}")
    job += "outputs: {model: {type: uri_folder, mode: direct}}\n"
    script = WRITES.replace("open(args.model,", f"open({path},").replace("import argparse", HEAD, 1)
    assert rules(tmp_path, {"train.yml": job, "src/train.py": script}) == expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py", [("AML406", "error")]),
        ("wget https://example.com/train.py && python train.py", []),
        ("python -m train", []),
    ],
)
def test_a_script_is_missing_from_code_without_any_script(
    tmp_path: Path, command: str, expected: list[tuple[str, str]]
) -> None:
    job = COMPONENT.replace("python train.py", command)
    assert rules(tmp_path, {"train.yml": job, "src/notes.txt": ""}) == expected


def test_a_spark_file_is_missing_from_code_without_any_script(tmp_path: Path) -> None:
    job = "type: spark\nname: count\ncode: ./src\nentry: {file: count.py}\n"
    assert rules(tmp_path, {"count.yml": job, "src/notes.txt": ""}) == [("AML406", "error")]


@pytest.mark.parametrize(
    ("command", "expected"),
    [("echo hello && sleep 5", []), ("echo hello && python -m train", [("AML608", "warning")])],
)
def test_a_stub_needs_no_shared_memory(tmp_path: Path, command: str, expected: list[tuple[str, str]]) -> None:
    job = f"type: command\nenvironment: azureml:torch:3\ncompute: azureml:gpus\ncommand: {command}\n"
    job += "distribution: {type: pytorch, process_count_per_instance: 8}\n"
    assert rules(tmp_path, {"job.yml": job}) == expected


@pytest.mark.parametrize(
    ("limits", "distribution", "expected"),
    [
        ("15", "{type: pytorch, process_count_per_instance: 2}", [("AML106", "warning")]),
        ("900", "{type: pytorch, process_count_per_instance: 2}", []),
        ("15", "", []),
    ],
)
def test_a_distributed_training_of_seconds_is_found(
    tmp_path: Path, limits: str, distribution: str, expected: list[tuple[str, str]]
) -> None:
    job = "type: command\nenvironment: azureml:torch:3\ncommand: python -m train\ncompute: azureml:gpus\n"
    job += f"limits: {{timeout: {limits}}}\nresources: {{shm_size: 16g}}\n"
    job += f"distribution: {distribution}\n" if distribution else ""
    assert rules(tmp_path, {"job.yml": job}) == expected


JOINS = """\
import argparse
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--dist-backend", default="nccl")
args = parser.parse_args()
dist.init_process_group(args.dist_backend)
"""


@pytest.mark.parametrize(
    ("arguments", "size", "expected"),
    [
        ("", "Standard_D8s_v5", [("AML621", "error")]),
        ("--dist-backend nccl", "Standard_D8s_v5", [("AML621", "error")]),
        ("--dist-backend=nccl", "Standard_D8s_v5", [("AML621", "error")]),
        ("--dist-backend '${{inputs.backend}}'", "Standard_D8s_v5", [("AML621", "error")]),
        ("--dist-backend gloo", "Standard_D8s_v5", []),
        ("$MORE", "Standard_D8s_v5", []),
        ("--dist-backend nccl", "Standard_ND96asr_v4", []),
        ("--dist-backend nccl", "STANDARD_DS12_v2", [("AML621", "error")]),  # which is not in the catalogue
        ("--dist-backend nccl", "Standard_NV4as_v4", []),
    ],
)
def test_nccl_needs_machines_with_gpus_however_it_is_asked_for(
    tmp_path: Path, arguments: str, size: str, expected: list[tuple[str, str]]
) -> None:
    count = 8 if size.startswith("Standard_ND") else 2
    job = f"type: command\ncode: ./src\nenvironment: azureml:torch:3\ncommand: python train.py {arguments}\n"
    job += f"resources: {{instance_type: {size}, shm_size: 16g}}\ninputs: {{backend: nccl}}\n"
    job += f"distribution: {{type: pytorch, process_count_per_instance: {count}}}\n"
    found = rules(tmp_path, {"job.yml": job, "src/train.py": JOINS})
    assert [each for each in found if each[0] != "AML211"] == expected


def test_the_folder_of_azure_ml_is_read_in_spite_of_its_dot(tmp_path: Path) -> None:
    job = tmp_path / ".azureml" / "job.yml"
    job.parent.mkdir()
    job.write_text("type: command\nenvironment: azureml:e:1\ncompute: azureml:c\ncommand: pyhton train.py\n")
    assert [(found.rule, found.span.file) for found in lint([tmp_path]).diagnostics] == [("AML504", job)]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("uri_file", "${{outputs.model}}/model.pt", [("AML510", "warning")]),
        ("uri_file", "'${{outputs.model}}'/model.pt", [("AML510", "warning")]),
        ("uri_file", "${{outputs.model}}/../model.pt", []),
        ("uri_file", "${{outputs.model}}.pt", []),
        ("uri_folder", "${{outputs.model}}/model.pt", []),
    ],
)
def test_nothing_is_beneath_a_file(tmp_path: Path, kind: str, value: str, expected: list[tuple[str, str]]) -> None:
    component = COMPONENT.replace("train.py", f"train.py --model {value}")
    component += f"outputs: {{model: {{type: {kind}}}}}\n"
    assert rules(tmp_path, {"train.yml": component, "src/train.py": WRITES.replace("open(", "print(")}) == expected


@pytest.mark.parametrize(
    ("inputs", "arguments", "script", "expected"),
    [
        ("model: {type: uri_folder}", "--model ${{inputs.model}}", "", []),
        ("weights: {type: uri_folder}", "--threshold 3", "", [("AML211", "warning")]),
        ("wait_for: {type: uri_folder}", "--threshold 3", "", []),
        ("weights: {type: uri_folder}", "--threshold 3", "import os\nprint(os.environ)\n", []),
    ],
    ids=["passed on", "left over", "only waited for", "may be read from the environment"],
)
def test_a_parallel_step_uses_its_inputs(
    tmp_path: Path, inputs: str, arguments: str, script: str, expected: list[tuple[str, str]]
) -> None:
    component = (
        "type: parallel\nname: score\ninputs:\n  images: {type: uri_folder}\n  " + inputs + "\n"
        'input_data: ${{inputs.images}}\nmini_batch_size: "10"\n'
        "task:\n  type: run_function\n  code: ./src\n  entry_script: score.py\n  environment: azureml:torch:3\n"
        f"  program_arguments: {arguments}\n"
    )
    script += "def init():\n    pass\n\n\ndef run(mini_batch):\n    return mini_batch\n"
    assert rules(tmp_path, {"score.yml": component, "src/score.py": script}) == expected


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('import mlflow\nmlflow.log_metric("mAP@50", 0.4)\n', [("AML517", "warning")]),
        ('from mlflow import log_metrics\nlog_metrics({"val/loss": 1, "F1 (macro)": 2})\n', [("AML517", "warning")]),
        ('import mlflow\nmlflow.log_param(key="a/../rate", value=3)\n', [("AML517", "warning")]),
        ('import mlflow\nmlflow.log_metric("val/loss: é-1.5 x", 0.4)\n', []),
        ('import mlflow\nfor k in (1, 5):\n    mlflow.log_metric(f"recall@{k}", 0.4)\n', []),
        ('import wandb\nwandb.log_metric("mAP@50", 0.4)\n', []),
    ],
)
def test_names_of_metrics_are_those_that_mlflow_allows(
    tmp_path: Path, script: str, expected: list[tuple[str, str]]
) -> None:
    assert rules(tmp_path, {"train.yml": COMPONENT, "src/train.py": script}) == expected


@pytest.mark.parametrize(
    "name", ["loss", "val/loss", "a b", "n:1", "a@1", "a//b", "/a", "a/", "..", "a/../b", "", "é", "a,b"]
)
def test_names_are_allowed_as_mlflow_allows_them(tmp_path: Path, name: str) -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    is_allowed = bool(validation.validate_param_and_metric_name(name)) and not validation.path_not_unique(name)
    script = f"import mlflow\nmlflow.log_metric({name!r}, 1)\n"
    found = rules(tmp_path, {"train.yml": COMPONENT, "src/train.py": script})
    assert found == ([] if is_allowed else [("AML517", "warning")])


ASSET = "name: digits\nversion: 1\ntype: uri_folder\npath: ./src\n"
ENVIRONMENT = "name: torch\nimage: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04\n"


@pytest.mark.parametrize(
    ("text", "load", "is_refused"),
    [
        (f"{COMPONENT}tags: {{made: 2026-01-31}}\n", load_component, True),
        (f"{COMPONENT}description: 2026-01-31\n", load_component, True),
        (f"{ASSET}tags: {{made: 2026-01-31}}\n", load_data, False),
        (f"{ASSET}properties: {{made: 2026-01-31}}\n", load_data, False),
        (f"{ASSET}description: 2026-01-31\n", load_data, True),
        (f"{ENVIRONMENT}tags: {{made: 2026-01-31}}\n", load_environment, False),
        ("name: digits\nauth_mode: key\ntags: {made: 2026-01-31}\n", load_online_endpoint, False),
    ],
)
def test_a_date_is_refused_where_the_client_takes_none(
    tmp_path: Path, text: str, load: Callable[[Path], object], is_refused: bool
) -> None:
    found = rules(tmp_path, {"file.yml": text, "src/train.py": "print('training')\n"})
    assert (("AML010", "error") in found) is is_refused
    with pytest.raises((TypeError, ValidationError)) if is_refused else nullcontext():
        load(tmp_path / "file.yml")
