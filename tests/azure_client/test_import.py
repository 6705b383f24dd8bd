"""`trainyard import`: scripts in the manner of Azure ML's guides become YAML that runs."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked_python import ForkedPython

Run = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("scripts_are_forked")

PYTHON = sys.executable
PAGE = (Path(__file__).parents[2] / "docs" / "coming-from" / "sdk_v2.md").read_text(encoding="utf-8")

TRAIN = """
import argparse
import os
from pathlib import Path

p = argparse.ArgumentParser()
p.add_argument("--data", required=True)
p.add_argument("--epochs", type=int, default=1)
p.add_argument("--model", required=True)
a = p.parse_args()
text = "".join(sorted(each.read_text() for each in Path(a.data).iterdir()))
Path(a.model, f"model-{os.environ.get('RANK', 0)}.txt").write_text(f"{text} {a.epochs}")
"""
SCORE = """
import argparse
from pathlib import Path


def init():
    p = argparse.ArgumentParser()
    p.add_argument("--scores")
    global scores
    scores = Path(p.parse_known_args()[0].scores)


def run(mini_batch):
    for file in mini_batch:
        (scores / Path(file).name).write_text("scored " + Path(file).read_text())
    return list(mini_batch)
"""
GUIDE = """
from azure.ai.ml import Input, MLClient, Output, command
from azure.ai.ml.entities import AmlCompute, Environment
from azure.core.exceptions import ResourceNotFoundError
from azure.identity import DefaultAzureCredential, InteractiveBrowserCredential

try:
    credential = DefaultAzureCredential()
    credential.get_token("https://management.azure.com/.default")
except Exception:
    credential = InteractiveBrowserCredential()
ml_client = MLClient.from_config(credential=credential)

try:
    cluster = ml_client.compute.get("gpu-cluster")
except ResourceNotFoundError:
    cluster = AmlCompute(name="gpu-cluster", size="Standard_NC64as_T4_v3", min_instances=0, max_instances=2)
    cluster = ml_client.compute.begin_create_or_update(cluster).result()

environment = Environment(
    name="fashion",
    image="mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04:latest",
    conda_file={"name": "fashion", "dependencies": ["python=3.10"]},
)
environment = ml_client.environments.create_or_update(environment)
job = command(
    code="src",
    command="python train.py --data ${{inputs.data}} --epochs ${{inputs.epochs}} --model ${{outputs.model}}",
    inputs={"data": Input(type="uri_folder", path="./data"), "epochs": 2},
    outputs={"model": Output(type="uri_folder", mode="rw_mount")},
    environment=environment,
    compute=cluster.name,
    instance_count=2,
    shm_size="16g",
    distribution={"type": "PyTorch", "process_count_per_instance": 4},
    display_name="fashion-mnist",
)
returned = ml_client.jobs.create_or_update(job, experiment_name="guide")
print("submitted", returned.name, returned.studio_url)
ml_client.jobs.stream(returned.name)
assert ml_client.jobs.get(returned.name).status == "Completed"
assert list(ml_client.data.list()) == []
evaluation = command(
    code="src",
    command="python train.py --data ${{inputs.model}} --model .",
    inputs={"model": Input(type="uri_folder", path=returned.outputs.model.path)},
    environment=f"{environment.name}:{environment.version}",
    compute="gpu-cluster",
)
ml_client.create_or_update(evaluation)
"""
PIPELINE = """
import argparse

from azure.ai.ml import Input, MLClient, Output, command
from azure.ai.ml.dsl import pipeline
from azure.ai.ml.parallel import RunFunction, parallel_run_function
from azure.ai.ml.sweep import Choice
from azure.identity import DefaultAzureCredential

p = argparse.ArgumentParser()
p.add_argument("--epochs", type=int, default=1)
epochs = p.parse_args().epochs
registry = MLClient(DefaultAzureCredential(), registry_name="azureml")
ENVIRONMENT = registry.environments.get("acpt-pytorch-2.8-cuda12.6", label="latest")
ml_client = MLClient(DefaultAzureCredential(), "id", "group", "workspace")
train = command(
    name="train_it",
    code="./src",
    command="python train.py --data ${{inputs.data}} --epochs ${{inputs.epochs}} --model ${{outputs.model}}",
    inputs={"data": Input(type="uri_folder"), "epochs": Input(type="integer", default=1)},
    outputs={"model": Output(type="uri_folder")},
    environment=ENVIRONMENT,
)
score = parallel_run_function(
    name="score",
    inputs={"models": Input(type="uri_folder")},
    outputs={"scores": Output(type="uri_folder")},
    input_data="${{inputs.models}}",
    instance_count=1,
    mini_batch_size="1",
    mini_batch_error_threshold=-1,
    task=RunFunction(
        code="./src", entry_script="score.py", environment=ENVIRONMENT, program_arguments="--scores ${{outputs.scores}}"
    ),
)
component = ml_client.components.create_or_update(train.component)


@pipeline(default_compute="cpu-cluster", description="Train, then score")
def train_and_score(raw, epochs):
    trained = component(data=raw, epochs=epochs)
    scored = score(models=trained.outputs.model)
    return {"scores": scored.outputs.scores}


ml_client.jobs.create_or_update(train_and_score(raw=Input(type="uri_folder", path="data"), epochs=epochs))
trial = train(data=Input(type="uri_folder", path="data"), epochs=Choice([1, 2]))
sweep = trial.sweep(compute="cpu-cluster", sampling_algorithm="grid", primary_metric="accuracy", goal="Maximize")
sweep.set_limits(max_total_trials=2, max_concurrent_trials=1)
sweep.display_name = "epochs"
ml_client.jobs.create_or_update(sweep)
"""


@pytest.fixture(scope="module")
def python_with_the_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Python whose scripts are spared the seconds that importing the client takes."""
    with ForkedPython(tmp_path_factory.mktemp("python"), modules=("azure.ai.ml", "azure.identity")) as running:
        yield str(running.python)


@pytest.fixture
def scripts_are_forked(python_with_the_client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that are imported run with that Python."""
    monkeypatch.setattr(sys, "executable", python_with_the_client)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    for path, text in {"src/train.py": TRAIN, "src/score.py": SCORE, "data/a.txt": "digits"}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def outputs_of(folder: Path, job: str, output: str) -> dict[str, str]:
    """The files of an output of the newest run."""
    run = max((folder / ".trainyard/runs").iterdir())
    return {file.name: file.read_text() for file in sorted((run / "jobs" / job / "outputs" / output).iterdir())}


def test_a_guides_job_becomes_yaml_that_lints_and_runs(trainyard: Run, folder: Path) -> None:
    (folder / "job.py").write_text(GUIDE)
    outcome = trainyard("import", "job.py", "--output", "azureml", "--yes")
    assert outcome.exit_code == 0, outcome.stderr
    assert "submitted fashion-mnist" in outcome.stderr, "what the script prints is no output of ours"
    files = {str(file.relative_to(folder / "azureml")) for file in folder.glob("azureml/**/*.yaml")}
    assert files == {"fashion-mnist.yaml", "job.yaml", "compute/gpu-cluster.yaml", "environments/fashion.yaml"}
    assert "run azureml/fashion-mnist.yaml" in outcome.stdout
    assert yaml.safe_load((folder / "azureml/fashion-mnist.yaml").read_text()) == {
        "type": "command",
        "display_name": "fashion-mnist",
        "experiment_name": "guide",
        "code": "../src",
        "command": "python train.py --data ${{inputs.data}} --epochs ${{inputs.epochs}} --model ${{outputs.model}}",
        "inputs": {"data": {"type": "uri_folder", "path": "../data"}, "epochs": 2},
        "outputs": {"model": {"type": "uri_folder", "mode": "rw_mount"}},
        "environment": "azureml:fashion:1",
        "compute": "azureml:gpu-cluster",
        "resources": {"instance_count": 2, "shm_size": "16g"},
        "distribution": {"type": "pytorch", "process_count_per_instance": 4},
    }
    followed = yaml.safe_load((folder / "azureml/job.yaml").read_text())["inputs"]["model"]["path"]
    assert followed == "azureml:azureml_fashion-mnist_output_data_model:1"
    assert trainyard("lint", "azureml").exit_code == 0
    ran = trainyard("run", "azureml/fashion-mnist.yaml", "--max-processes", "4")
    assert ran.exit_code == 0, ran.stderr
    assert outputs_of(folder, "fashion-mnist", "model") == {f"model-{rank}.txt": "digits 2" for rank in range(4)}


def test_a_pipeline_and_a_sweep_become_yaml_that_lints_and_runs(trainyard: Run, folder: Path) -> None:
    (folder / "job.py").write_text(PIPELINE)
    outcome = trainyard("import", "job.py", "--yes", "--", "--epochs", "3")
    assert outcome.exit_code == 0, outcome.stderr
    linted = trainyard("lint", "train_and_score.yaml", "epochs.yaml", "components")
    assert linted.exit_code == 0, linted.stderr
    component = yaml.safe_load((folder / "components/train_it.yaml").read_text())
    assert component["code"] == "../src"
    curated = "azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/labels/latest"
    assert component["environment"] == curated
    assert yaml.safe_load((folder / "epochs.yaml").read_text())["search_space"] == {
        "epochs": {"type": "choice", "values": [1, 2]}
    }
    ran = trainyard("run", "train_and_score.yaml")
    assert ran.exit_code == 0, ran.stderr
    assert outputs_of(folder, "score", "scores") == {"model-0.txt": "scored digits 3"}


def test_nothing_runs_without_the_users_word(trainyard: Run, folder: Path) -> None:
    (folder / "job.py").write_text("import azure.ai.ml\nopen('ran', 'w')\n")
    outcome = trainyard("import", "job.py")
    assert outcome.exit_code == 2
    assert "job.py was not run: an import runs its code, which --yes agrees to" in outcome.stderr
    linted = trainyard("lint", "job.py")
    assert linted.exit_code == 2
    assert "`trainyard import job.py` writes what a script submits" in linted.stderr
    assert not (folder / "ran").exists()


def test_a_cluster_that_is_taken_to_exist_does_not_end_an_import(trainyard: Run, folder: Path) -> None:
    """Without `try`, a script counts on its cluster, and creates none; with it, here around the caller, it does."""
    (folder / "job.py").write_text(
        """
from azure.ai.ml import MLClient, command
from azure.ai.ml.entities import AmlCompute

client = MLClient.from_config()
cluster = client.compute.get("gpu-cluster")
print(cluster.name, cluster.size, cluster.provisioning_state)


def existing(name):
    return client.compute.get(name)


try:
    existing("cpu-cluster")
except Exception:
    client.compute.begin_create_or_update(AmlCompute(name="cpu-cluster", size="Standard_D4s_v3")).wait(timeout=60)
client.compute.begin_delete("old-cluster").wait()
assert client.compute.begin_delete("older-cluster").result() is None
assert client.compute.begin_stop("it").status() == "Succeeded"
client.jobs.create_or_update(command(name="job", command="true", environment="e:1", compute=cluster.name))
"""
    )
    outcome = trainyard("import", "job.py", "--yes")
    assert outcome.exit_code == 0, outcome.stderr
    assert [path.name for path in (folder / "compute").iterdir()] == ["cpu-cluster.yaml"]
    assert yaml.safe_load((folder / "job.yaml").read_text())["compute"] == "azureml:gpu-cluster"


REFUSED = "an import has no network and starts no programs"
FAILING = {
    "x = 1": "error: job.py submits nothing; expected a call such as ml_client.jobs.create_or_update(job)",
    "def f():\n    return lr\n\n\nf()": "error: job.py:5: NameError: name 'lr' is not defined",
    "import sys; sys.exit(3)": "error: job.py exits with 3",
    "import os; os._exit(0)": "error: job.py ended its process",
    "x = (": "SyntaxError: '(' was never closed",
    "MLClient(None).components.get('a')": "ResourceNotFoundError: Azure ML is not asked for components",
    "import urllib.request as r; r.urlopen('http://127.0.0.1:9/')": REFUSED,
    "import socket; socket.create_connection(('127.0.0.1', 9))": REFUSED,
    "import os; os.system('touch ran')": f"error: job.py:4: PermissionError: {REFUSED} (os.system)",
    "import subprocess; subprocess.run(['touch', 'ran'])": f"PermissionError: {REFUSED} (subprocess.Popen)",
}


@pytest.mark.parametrize("program", FAILING, ids=range(len(FAILING)))
def test_what_fails_is_one_error_and_writes_nothing(trainyard: Run, folder: Path, program: str) -> None:
    (folder / "job.py").write_text(f"from azure.ai.ml import MLClient\n\n\n{program}\n")
    before = set(folder.rglob("*"))
    outcome = trainyard("import", "job.py", "--yes")
    assert outcome.exit_code == 1
    assert FAILING[program] in outcome.stderr
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "from azureml.core import Workspace\n",
            "job.py was not run: import reads scripts of SDK v2 (azure.ai.ml), and this one uses SDK v1 (azureml.core)",
        ),
        (
            "import torch\n",
            "job.py was not run: import reads scripts of SDK v2 (azure.ai.ml), and this one does not use it",
        ),
    ],
)
def test_other_scripts_are_not_run(trainyard: Run, folder: Path, text: str, message: str) -> None:
    (folder / "job.py").write_text(f"{text}open('ran', 'w')\n")
    outcome = trainyard("import", "job.py", "--yes")
    assert (outcome.exit_code, (folder / "ran").exists()) == (1, False)
    assert f"error: {message}" in outcome.stderr


def test_files_are_overwritten_with_force_only(trainyard: Run, folder: Path) -> None:
    (folder / "job.py").write_text(GUIDE)
    (folder / "job.yaml").write_text("mine\n")
    refused = trainyard("import", "job.py", "--yes")
    assert refused.exit_code == 1
    assert "1 file would be overwritten, so nothing was written: job.yaml; choose another --output" in refused.stderr
    assert not (folder / "fashion-mnist.yaml").exists()
    assert (folder / "job.yaml").read_text() == "mine\n"
    assert trainyard("import", "job.py", "--yes", "--force").exit_code == 0
    assert "type: command" in (folder / "job.yaml").read_text()


def test_without_the_client_one_line_says_how_to_install_it(
    trainyard: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "without/azure").mkdir(parents=True)
    (folder / "without/azure/__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(folder / "without"))
    monkeypatch.setattr(sys, "executable", PYTHON)  # which has not imported it yet
    (folder / "job.py").write_text(GUIDE)
    outcome = trainyard("import", "job.py", "--yes")
    assert outcome.exit_code == 1
    advice = "azure.ai is not installed: pip install 'trainyard-azureml[azure]'"
    assert outcome.stderr.splitlines() == [f"error: {advice}"]


def test_the_script_of_the_page_becomes_its_yaml(trainyard: Run, folder: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (folder / "job.py").write_text(script)
    assert trainyard("import", "job.py", "--output", "azureml", "--yes").exit_code == 0
    shown = dict(re.findall(r"`azureml/(\S+)`:\n\n```yaml\n(.*?)```", PAGE, re.DOTALL))
    assert set(shown) == {"digits.yaml", "compute/gpu-cluster.yaml"}
    assert {path: (folder / "azureml" / path).read_text() for path in shown} == shown


def test_each_argument_of_the_page_becomes_its_yaml(trainyard: Run, folder: Path) -> None:
    rows = re.findall(r"^\| `(\w+=.+)` \| `(\w+: .+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 10
    script = "from azure.ai.ml import *\nfrom azure.ai.ml import Input, Output, command\nclient = MLClient(None)\n"
    for number, (argument, _) in enumerate(rows):
        given = {"environment": "'e:1'", "command": "'true'"}
        others = ", ".join(f"{key}={value}" for key, value in given.items() if not argument.startswith(key))
        script += f"client.create_or_update(command(name='job{number}', {argument}, {others}))\n"
    (folder / "job.py").write_text(script)
    outcome = trainyard("import", "job.py", "--yes")
    assert outcome.exit_code == 0, outcome.stderr
    for number, (_, shown) in enumerate(rows):
        expected = yaml.safe_load(shown)
        assert expected.items() <= yaml.safe_load((folder / f"job{number}.yaml").read_text()).items()
