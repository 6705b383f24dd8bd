"""A pull request can name any file of the machine: a finding says where it is, and never what it contains."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.project_files import is_within_root, limit_reading

CommandLine = Callable[..., Any]
SECRET = "verysecret"

JOB = """type: command
command: python train.py --x 1
environment: azureml:e:1
compute: azureml:c
"""
PIPELINE = "type: pipeline\nsettings: {default_compute: azureml:c}\njobs:\n  a:\n    type: command\n"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository beside files that are not its own."""
    outside = tmp_path / "outside"
    (outside / "code").mkdir(parents=True)
    (outside / "context").mkdir()
    (outside / "component.yaml").write_text(f"type: command\nname: {SECRET}\n{SECRET}: 1\ninputs: {{{SECRET}: 1}}\n")
    (outside / "notes").write_text(f"{SECRET} {SECRET}\n")
    (outside / "conda.yaml").write_text(f"{SECRET}: 1\ndependencies: [{SECRET}==1, python=3]\n")
    (outside / "code" / "train.py").write_text(
        f"import argparse\np = argparse.ArgumentParser()\np.add_argument('--{SECRET}')\np.parse_args()\n"
    )
    (outside / "code" / f"{SECRET}.py").write_text("")
    (outside / "code" / ".amlignore").write_text(f"{SECRET}\n")
    (outside / "context" / "Dockerfile").write_text(f"FROM {SECRET}:latest\nRUNN {SECRET}\n")
    (outside / "ds.json").write_text(f'{{"{SECRET}": 1, "train_batch_size": "{SECRET}"}}')
    (outside / "MLTable").write_text(f"{SECRET}: 1\n")
    (outside / "settings.toml").write_text(f"[lint]\n{SECRET} = 1\n")
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


REFERENCES = {
    "a component": f"{PIPELINE}    component: ../outside/component.yaml\n    inputs: {{a: 1}}\n",
    "a file of another kind": f"{PIPELINE}    component: ../outside/notes\n",
    "an absolute path": f"{PIPELINE}    component: OUTSIDE/component.yaml\n",
    "a pipeline component": f"{PIPELINE}    component: ../outside/component.yaml\n".replace("command\n", "pipeline\n"),
    "a folder of code": JOB + "code: ../outside/code\n",
    "a module in the code": JOB.replace("train.py", "-m verysecre") + "code: ../outside/code\n",
    "a conda file": JOB.replace("azureml:e:1", "{image: a/b:1, conda_file: ../outside/conda.yaml}"),
    "a context of a build": JOB.replace("azureml:e:1", "{build: {path: ../outside/context}}"),
    "an environment": JOB.replace("azureml:e:1", "file:../outside/component.yaml"),
    "a table": JOB + "inputs: {t: {type: mltable, path: ../outside}}\n",
    "a similar name": JOB + "inputs: {t: {type: uri_file, path: ../outside/code/verysecre.py}}\n",
    "a configuration of DeepSpeed": JOB.replace("--x 1", "--deepspeed ../outside/ds.json") + "code: ../outside/code\n",
    "a schema": f"$schema: ../outside/component.yaml\n{JOB}",
}


@pytest.mark.parametrize("text", REFERENCES.values(), ids=REFERENCES)
@pytest.mark.parametrize("output_format", ["text", "json", "sarif", "github"])
def test_findings_never_quote_what_is_outside(
    trainyard: CommandLine, repository: Path, text: str, output_format: str
) -> None:
    (repository / "job.yaml").write_text(text.replace("OUTSIDE", str(repository.parent / "outside")))
    outcome = trainyard("lint", "job.yaml", "--format", output_format, "--pedantic")
    assert SECRET not in outcome.stdout + outcome.stderr


@pytest.mark.parametrize("name", ["component.yaml", "notes", "MLTable"])
@pytest.mark.parametrize("how", ["a link", "a linked folder"])
def test_links_lead_nowhere_else(trainyard: CommandLine, repository: Path, name: str, how: str) -> None:
    outside = repository.parent / "outside"
    if how == "a link":
        (repository / "job.yaml").symlink_to(outside / name)
    else:
        (repository / "linked").symlink_to(outside)
        (repository / "job.yaml").write_text(f"{PIPELINE}    component: linked/{name}\n")
    for arguments in (("lint",), ("lint", "job.yaml"), ("plan", "job.yaml")):
        outcome = trainyard(*arguments)
        assert SECRET not in outcome.stdout + outcome.stderr


def test_settings_and_profiles_that_are_links_are_not_quoted(trainyard: CommandLine, repository: Path) -> None:
    (repository / ".trainyard.toml").symlink_to(repository.parent / "outside" / "settings.toml")
    for name in ("profiles", "templates"):
        (repository / name).mkdir()
    (repository / "profiles" / "mine.yaml").symlink_to(repository.parent / "outside" / "component.yaml")
    for arguments in (("lint",), ("lint", "profiles"), ("render", "mine", "--diff"), ("render", "--check")):
        outcome = trainyard(*arguments)
        assert outcome.exit_code in (1, 2)
        assert SECRET not in outcome.stdout + outcome.stderr


def test_a_file_in_the_way_of_a_rendered_one_is_not_shown(trainyard: CommandLine, repository: Path) -> None:
    for name in ("profiles", "templates/pipelines", "pipelines"):
        (repository / name).mkdir(parents=True)
    (repository / "profiles" / "mine.yaml").write_text(
        "description: mine\ncluster: gpu\nnodes: 1\nprocesses_per_node: 1\nprecision: fp32\nshm_size: 2g\n"
        "environment: azureml:env:1\n"
    )
    (repository / "templates" / "pipelines" / "x.yaml.j2").write_text("a: 1\n")
    (repository / "pipelines" / "x.yaml").symlink_to(repository.parent / "outside" / "notes")
    for arguments in (("render", "mine", "--check"), ("render", "mine", "--diff")):
        outcome = trainyard(*arguments)
        assert SECRET not in outcome.stdout + outcome.stderr


def test_root_widens_and_narrows_what_is_read(trainyard: CommandLine, repository: Path) -> None:
    (repository / "job.yaml").write_text(REFERENCES["a component"])
    assert "outside of" in trainyard("lint", "job.yaml").stderr
    assert SECRET in trainyard("lint", "job.yaml", "--root", "..").stderr
    (repository / "below").mkdir()
    (repository / "component.yaml").write_text(f"{SECRET}: 1\n")
    (repository / "below" / "job.yaml").write_text(f"{PIPELINE}    component: ../component.yaml\n")
    assert SECRET in trainyard("lint", "below/job.yaml").stderr, "the root is the repository's"
    assert SECRET not in trainyard("lint", "below/job.yaml", "--root", "below").stderr


# What cannot be read at all -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["pipe", "device", "dangling", "circular", "folder"])
@pytest.mark.parametrize("text", [REFERENCES["a component"], REFERENCES["a conda file"]], ids=["component", "conda"])
def test_what_never_ends_is_not_waited_for(trainyard: CommandLine, repository: Path, make: str, text: str) -> None:
    place = repository / "named.yaml"
    if make == "pipe":
        os.mkfifo(place)
    elif make == "device":
        place.symlink_to("/dev/zero")
    elif make == "dangling":
        place.symlink_to("nowhere")
    elif make == "circular":
        place.symlink_to("named.yaml")
    else:
        place.mkdir()
    for name in ("component", "conda"):
        text = text.replace(f"../outside/{name}.yaml", "named.yaml")
    (repository / "job.yaml").write_text(text)
    (repository / "again.yaml").symlink_to("named.yaml")
    for arguments in (("lint",), ("lint", "job.yaml"), ("plan", "job.yaml")):
        outcome = trainyard(*arguments)
        assert outcome.exit_code in (1, 2)


def test_every_read_of_a_project_goes_through_one_function() -> None:
    import ast

    source = Path(__file__).resolve().parents[2] / "src" / "trainyard"
    # What ships with Trainyard, and what is read by the functions that bound it.
    allowed = {"git.py", "resources.py", "project_files.py"}
    shipped = (
        "_CSV_FILE",
        "_TABLE",
        "_FAMILIES_FILE",
        "_KNOWN_WORDS_FILE",
        "_MODEL_TYPES",
        "schema_file",
        "schema_source",
        "shipped",
    )
    for folder in ("render", "azure", "cli", "editor", "lint", "plan", "spec"):
        for file in (source / folder).rglob("*.py"):
            text = file.read_text()
            for node in ast.walk(ast.parse(text)):
                is_read = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                if is_read and node.func.attr in ("read_text", "read_bytes", "open"):  # type: ignore[union-attr]
                    said = ast.get_source_segment(text, node) or ""
                    known = file.name in allowed or any(word in said for word in shipped)
                    if not known and f"{folder}/{file.name}" not in OTHER_READS:
                        raise AssertionError(f"{folder}/{file.name}:{node.lineno}: {said}")


OTHER_READS = {
    "render/installed_from.py",  # what pip noted when it installed the package
    "render/scaffolding.py",
    "azure/workspace.py",  # the user's own profile of the Azure command line
    "cli/doctor.py",  # the checkout's own constraints
    "cli/runs.py",  # logs, whose paths the record's reader confines
    "spec/rule.py",  # examples of rules, which the package holds
    "spec/schema_checks.py",
}


def test_a_folder_above_a_link_is_where_the_link_leads(repository: Path) -> None:
    (repository / "link").symlink_to(repository.parent / "outside" / "code")
    limit_reading(repository)
    assert is_within_root(repository / "job.yaml")
    assert not is_within_root(f"{repository}/link/../notes")
    assert not is_within_root(f"{repository}/link/..")
    limit_reading()
