"""Verbs in a repository that is not a Trainyard project: they work, and suggest only what fits there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

PIPELINE = """\
type: pipeline
jobs:
  hello:
    type: command
    command: echo hello
    code: .
    environment: azureml:env:1
    compute: azureml:cpu
"""


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "pipeline.yml").write_text(PIPELINE)
    (tmp_path / "jobs" / "other.yml").write_text(PIPELINE.replace("compute:", "compue:").replace("code: .", "code: .."))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_lint_without_arguments_checks_the_whole_folder(trainyard: Run) -> None:
    outcome = trainyard("lint")
    assert outcome.exit_code == 1
    assert "jobs/other.yml:8:5" in outcome.stderr


def test_a_run_suggests_only_commands_that_work_here(trainyard: Run) -> None:
    outcome = trainyard("run", "pipeline.yml", "--quiet")
    assert outcome.exit_code == 0, outcome.stderr
    assert "plan pipeline.yml" in outcome.stdout
    assert "render" not in outcome.stdout
    assert "hello" in trainyard("graph", "pipeline.yml").stdout
    assert trainyard("plan", "pipeline.yml").exit_code == 0


JOB = """\
$schema: https://azuremlschemas.azureedge.net/latest/commandJob.schema.json
code: ../..
command: python jobs/train/train.py --epochs ${{inputs.epochs}} --out ${{outputs.model}}
inputs: {epochs: 5}
outputs: {model: {type: uri_folder, path: azureml://datastores/workspaceblobstore/paths/mnist, mode: rw_mount}}
environment: azureml:torch_cpu@latest
compute: azureml:gpus
"""


def test_a_repository_of_jobs_that_stand_alone(trainyard: Run, repository: Path) -> None:
    """As in repositories with a folder per job, beside pipelines of Azure DevOps and files of other programs."""
    for file in (repository / "pipeline.yml", repository / "jobs" / "other.yml"):
        file.unlink()
    (repository / "azure-pipelines.yml").write_text("trigger: [main]\nsteps: [{script: echo}]\n")
    (repository / "jobs" / "train").mkdir()
    (repository / "jobs" / "train" / "train.py").write_text(
        "import argparse, pathlib\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs', type=int)\n"
        "parser.add_argument('--out')\nargs = parser.parse_args()\n"
        "(pathlib.Path(args.out) / 'model.txt').write_text(str(args.epochs))\n"
    )
    (repository / "jobs" / "train" / "job.yaml").write_text(JOB)

    assert trainyard("lint").exit_code == 0
    for verb in ("plan", "graph", "run"):
        assert trainyard(verb).stderr.startswith("error: missing FILE, such as pipeline.yml\n")
    assert "processes    1 process on 1 node" in trainyard("plan", "jobs/train/job.yaml").stdout
    assert "1 process on 1 node" in trainyard("graph", "jobs/train/job.yaml").stdout
    ran = trainyard("run", "jobs/train/job.yaml", "--name", "one", "--set", "inputs.epochs=2")
    assert ran.exit_code == 0, ran.stderr
    written = repository / ".trainyard/runs/one/jobs/job/outputs/model/model.txt"
    assert written.read_text() == "2"
    assert trainyard("doctor").exit_code == 0


def test_runs_never_enter_a_snapshot_on_azure(trainyard: Run, repository: Path) -> None:
    wrote = "wrote .amlignore: Azure ML would upload .trainyard with the code of hello"
    assert wrote in trainyard("run", "pipeline.yml", "--quiet").stderr
    assert "/.trainyard/" in (repository / ".amlignore").read_text().splitlines()
    assert ".amlignore" not in trainyard("run", "pipeline.yml", "--quiet").stderr


@pytest.mark.parametrize("name", [".amlignore", ".gitignore"])
def test_an_ignore_file_of_the_users_stays_as_it_is(trainyard: Run, repository: Path, name: str) -> None:
    warning = "warning: Azure ML would upload .trainyard with the code of hello; add .trainyard/ to "
    (repository / name).write_text("*.log\n")
    assert warning + name in trainyard("run", "pipeline.yml", "--quiet").stderr
    assert (repository / name).read_text() == "*.log\n"
    assert (repository / ".trainyard" / ".gitignore").read_text() == "*\n"

    (repository / name).write_text(".trainyard/\n")
    assert "warning" not in trainyard("run", "pipeline.yml", "--quiet").stderr


def test_a_project_is_needed_to_render(trainyard: Run) -> None:
    outcome = trainyard("render", "t4")
    assert outcome.exit_code == 2
    assert "`trainyard init NAME` starts one" in outcome.stderr


REGISTERED = """\
type: pipeline
settings: {default_compute: azureml:cpus}
jobs:
  prepare:
    type: command
    component: azureml:prepare_data:3
  score:
    component: azureml://registries/azureml/components/score/versions/1
    inputs:
      data: ${{parent.jobs.prepare.outputs.prepared}}
"""


def test_a_pipeline_of_components_kept_in_azure_ml_cannot_run_here(trainyard: Run, repository: Path) -> None:
    (repository / "registered.yml").write_text(REGISTERED)
    outcome = trainyard("run", "registered.yml")
    assert outcome.exit_code == 1
    assert "registered.yml:6:16: error[AML901] the component 'azureml:prepare_data:3' is kept" in outcome.stderr


def test_another_version_of_a_component_kept_in_azure_ml_is_a_change(trainyard: Run, repository: Path) -> None:
    file = repository / "registered.yml"
    file.write_text(REGISTERED)
    for arguments in (("init", "--quiet"), ("add", "registered.yml"), ("commit", "--quiet", "-m", "all")):
        subprocess.run(["git", "-c", "user.name=A", "-c", "user.email=a@example.com", *arguments], check=True)
    file.write_text(REGISTERED.replace("prepare_data:3", "prepare_data:4") + "  last: {component: azureml:last:1}\n")
    told = trainyard("plan", "registered.yml", "--against", "HEAD").stdout
    assert "component (prepare)  azureml:prepare_data:3 → azureml:prepare_data:4" in told
    assert "job last   new: azureml:last:1, kept in Azure ML: not known here" in told


def test_components_kept_in_azure_ml_are_drawn(trainyard: Run, repository: Path) -> None:
    (repository / "registered.yml").write_text(REGISTERED)
    drawn = trainyard("graph", "registered.yml")
    assert drawn.exit_code == 0, drawn.stderr
    assert "prepare  kept in Azure ML" in drawn.stdout
    assert "▷ prepared" in drawn.stdout
    assert "◁ data" in drawn.stdout
    assert "<b>score</b><br>kept in Azure ML" in trainyard("graph", "registered.yml", "--format", "mermaid").stdout

    (repository / "whole.yml").write_text("type: pipeline\ncomponent: azureml:whole:1\n")
    assert "whole  kept in Azure ML" in trainyard("graph", "whole.yml").stdout
    assert "<b>whole</b><br>kept in Azure ML" in trainyard("graph", "whole.yml", "--format", "mermaid").stdout


def test_packages_without_a_pin_are_not_compared_with_one(trainyard: Run) -> None:
    assert "pinned to" not in trainyard("doctor").stdout


# init --existing ------------------------------------------------------------------------------------------------------

MISTAKES = """\
type: command
command: python train.py
environment: azureml:env
compute: azureml:gpu-v100
nmae: x
tags: {a: 1, a: 2}
inputs:
  data: {type: uri_foldr, path: data}
  more: {type: uri_file, path: azureml:more}
outputs:
  model: {type: uri_folder, mode: rw_mout}
limits: {timeout: 1h}
"""


def findings_in(shown: str) -> list[str]:
    return re.findall(r"^\S+?:\d+:\d+: (\w+\[\w+\])", shown, re.MULTILINE)


def test_the_most_serious_findings_are_shown_before_they_are_kept_as_known(trainyard: Run, repository: Path) -> None:
    (repository / "jobs" / "train.yml").write_text(MISTAKES)
    outcome = trainyard("init", "--existing")
    assert outcome.exit_code == 0, outcome.stderr
    shown = findings_in(outcome.stderr)
    assert len(shown) == len(set(shown)) == 5
    assert all(each.startswith("error") for each in shown)
    everything = trainyard("lint", "--no-baseline", "--format", "json")
    assert everything.exit_code == 1
    count = len(json.loads(everything.stdout))
    assert f"the baseline keeps {count} findings; `trainyard lint --no-baseline` shows all" in outcome.stderr
    assert trainyard("lint").exit_code == 0
    assert findings_in(trainyard("lint").stderr) == []


def test_clusters_that_nothing_describes_are_offered_and_give_plan_a_price(trainyard: Run, repository: Path) -> None:
    (repository / "compute").mkdir()
    (repository / "compute" / "cpu.yml").write_text("type: amlcompute\nname: cpu\nsize: Standard_D8s_v5\n")
    job = "type: command\ncommand: echo\nenvironment: azureml:env:1\ncompute: azureml:gpu-t4\n"
    (repository / "jobs" / "train.yml").write_text(job)
    told = trainyard("init", "--existing").stderr
    assert "no file says which VM size these clusters have: gpu-t4; say it in .trainyard.toml" in told
    settings = repository / ".trainyard.toml"
    assert '[lint.computes]\n# gpu-t4 = "Standard_…"\n' in settings.read_text()
    assert "an hour" not in trainyard("plan", "jobs/train.yml").stdout
    settings.write_text(settings.read_text().replace('# gpu-t4 = "Standard_…"', 'gpu-t4 = "Standard_NC64as_T4_v3"'))
    assert "on demand $4.352 an hour" in trainyard("plan", "jobs/train.yml").stdout


def test_where_all_clusters_are_known_none_is_offered(trainyard: Run, repository: Path) -> None:
    (repository / "compute").mkdir()
    (repository / "compute" / "cpu.yml").write_text("type: amlcompute\nname: cpu\nsize: Standard_D8s_v5\n")
    assert "VM size" not in trainyard("init", "--existing").stderr
    assert "computes" not in (repository / ".trainyard.toml").read_text()


def test_a_project_is_no_repository_to_adopt(trainyard: Run, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trainyard("init", "demo").exit_code == 0
    before = sorted((repository / "demo").rglob("*"))
    for folder in ("demo", "demo/pipelines"):
        monkeypatch.chdir(repository / folder)
        outcome = trainyard("init", "--existing")
        assert outcome.exit_code == 1
        assert "is a Trainyard project, which has all that --existing writes" in outcome.stderr
    assert sorted((repository / "demo").rglob("*")) == before


@pytest.mark.parametrize(("flags", "other"), [(("--baseline", "b.json"), "--baseline"), (("--write-baseline",), "")])
def test_no_baseline_contradicts_a_baseline(trainyard: Run, flags: tuple[str, ...], other: str) -> None:
    outcome = trainyard("lint", "--no-baseline", *flags)
    assert outcome.exit_code == 2
    assert "--no-baseline cannot be combined with --baseline and --write-baseline" in outcome.stderr


@pytest.mark.parametrize(
    ("folder", "name"),
    [("", "hello"), ("jobs", "hello"), ("cli/mnist", "mnist-hello"), ("cli/My job", "My-job-hello")],
)
def test_the_name_of_a_run_has_its_pipelines_folder(trainyard: Run, repository: Path, folder: str, name: str) -> None:
    file = repository / folder / "hello.yml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("type: command\ncommand: echo hello\nenvironment: azureml:env:1\n")
    outcome = trainyard("run", str(file), "--quiet")
    assert outcome.exit_code == 0, outcome.stderr
    (run,) = (repository / ".trainyard" / "runs").iterdir()
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}-{name}", run.name)


@pytest.fixture(scope="module")
def very_many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in no repository with 5,001 YAML files, one of which is Azure ML's."""
    folder = tmp_path_factory.mktemp("home")
    for number in range(5000):
        (folder / f"{number}.yaml").write_text("a: 1\n")
    (folder / "pipeline.yml").write_text(PIPELINE)
    return folder


def test_lint_does_not_read_a_home_directory_unasked(
    trainyard: Run, very_many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(very_many)
    outcome = trainyard("lint")
    assert outcome.exit_code == 2
    assert "is not in a repository and has more than 5,000 YAML files" in outcome.stderr
    assert "or read them all with --yes" in outcome.stderr
    assert "in 1 file" in trainyard("lint", "--yes").stderr
    assert "in 1 file" in trainyard("lint", "pipeline.yml").stderr
    # A repository is meant as a whole, whatever its size.
    (very_many / ".git").mkdir()
    assert "in 1 file" in trainyard("lint").stderr
