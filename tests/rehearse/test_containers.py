"""`--environments docker`: what an engine is asked to do, with a stand-in that runs commands in no container at all.

What only a real engine can show is in test_real_containers.py.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.container_images import bind_mount, find_engine
from trainyard.rehearse.containers import FIRST_PROCESS
from trainyard.rehearse.errors import RunError, UsageError
from trainyard.spec.diagnostic import SpecError

# Remembers its arguments and which images it has; `run` runs the command here.
ENGINE = f"""#!{sys.executable} -IS
import json, os, pathlib, sys

words, folder = sys.argv[1:], pathlib.Path(__file__).parent
images = folder / "images.json"
known = json.loads(images.read_text()) if images.exists() else []
if words[0] in ("run", "build", "pull", "kill", "rm"):
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(words) + "\\n")
if words[0] == "--version":
    print("Docker version 28.2.2, build e6534b4")
elif words[0] == "info":
    print('["name=seccomp,profile=builtin"]')
elif words[:2] == ["image", "inspect"]:
    if words[2] not in known:
        sys.exit(1)
    digest = f"sha256:{{known.index(words[2]):064}}"
    print(json.dumps([{{"Id": digest, "Config": {{"Env": ["OF_IMAGE=set"]}}}}]))
elif words[0] == "pull" and "missing" in words[1]:
    sys.exit("Error response from daemon: manifest for " + words[1] + " not found")
elif words[0] in ("pull", "build"):
    known.append(words[words.index("--tag") + 1] if words[0] == "build" else words[1])
    images.write_text(json.dumps(known))
elif words[0] == "run" and "sh" not in words:
    print("/bin/sh")
elif words[0] == "run":
    place = words[words.index("--workdir") + 1]
    os.chdir(place)
    os.execv("/bin/sh", ["sh", *words[words.index("-c"):]])
"""


@pytest.fixture
def calls(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the stand-in on PATH as `docker`; return what lists the calls of one kind."""
    programs = workspace.root / "programs"
    programs.mkdir()
    (programs / "docker").write_text(ENGINE)
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("DOCKER_HOST", raising=False)

    def listed(kind: str) -> list[list[str]]:
        file = programs / "calls.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [words for line in lines if (words := json.loads(line))[0] == kind]

    return listed


def values_of(words: list[str], option: str) -> list[str]:
    return [after for word, after in itertools.pairwise(words) if word == option]


def test_a_process_is_started_with_its_paths_variables_and_resources(
    workspace: Any, calls: Any, decisions: Any, output_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_OF_THE_SHELL", "PYTHONPATH", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "of the shell")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    (workspace.root / "data").mkdir()
    (workspace.root / "data" / "rows.csv").write_text("1\n")
    component = workspace.component(
        "worker",
        'echo "$WANDB_API_KEY $OF_IMAGE" > ${{outputs.seen}}',
        inputs={"rows": {"type": "uri_folder"}},
        outputs={"seen": "uri_file"},
        environment={"image": "python:3.12"},
    )
    job = {
        "component": component,
        "inputs": {"rows": {"type": "uri_folder", "path": "../data"}},
        "environment_variables": {"WANDB_API_KEY": "of the job", "HOME": "/home/job"},
        "resources": {"shm_size": "16g", "docker_args": "--ulimit memlock=-1 --label 'a b'"},
    }

    record = workspace.run(workspace.pipeline({"work": job}), environments="docker")

    assert record.status == "completed", record.reason
    assert output_of(record, "work", "seen").read_text() == "of the job set\n"
    asked, words = calls("run")
    program = str(workspace.root / "programs" / "docker")
    folder = record.folder / "jobs" / "work"
    image = f"sha256:{'0' * 64}"
    assert asked[:4] == ["run", "--rm", "--network", "host"]
    assert words[:9] == [
        *("run", "--rm", "--pull", "never", "--name"),
        words[5],
        "--label",
        f"trainyard.run={record.id}",
        "--label",
    ]
    assert values_of(words, "--network") == ["host"]
    assert values_of(words, "--shm-size") == ["16g"]
    assert values_of(words, "--workdir") == [str(folder / "nodes" / "0")]
    store = workspace.root / ".trainyard" / "mlruns"
    assert values_of(words, "--mount") == [
        f"type=bind,source={folder},destination={folder}",
        f"type=bind,source={store},destination={store}",
        f"type=bind,source={folder}/data/INPUT_rows,destination={folder}/data/INPUT_rows,readonly",
    ]
    passed = values_of(words, "--env")
    assert {"WANDB_API_KEY", "HOME=/home/job", "OF_IMAGE", "HTTPS_PROXY", "AZUREML_RUN_ID"} <= set(passed)
    assert not {"SECRET_OF_THE_SHELL", "PYTHONPATH", "PATH", "LANG"} & {each.partition("=")[0] for each in passed}
    assert "of the job" not in words
    assert words[words.index("--ulimit") :] == [
        *("--ulimit", "memlock=-1", "--label", "a b"),
        *("--entrypoint", "/bin/sh", image, "-c", FIRST_PROCESS, "sh"),
        *("/bin/sh", "-c", record.jobs["work"].command),
    ]
    assert ("--user" in words) == (os.getuid() != 0)
    assert record.jobs["work"].image == f"docker.io/library/python:3.12 ({image})"
    assert f"containers: docker, docker.io/library/python:3.12 ({image})" in decisions(record, "work")
    assert calls("pull") == [["pull", "docker.io/library/python:3.12"]]
    assert find_engine(os.environ).program == program


def test_ranks_of_a_node_share_its_memory_and_an_image_counts_for_reuse(workspace: Any, calls: Any) -> None:
    uses = {"distribution": {"type": "pytorch", "process_count_per_instance": 2}}
    pipeline = workspace.one_job("echo rank $RANK", environment={"image": "example.org/one:1"}, **uses)

    first = workspace.run(pipeline, environments="docker")

    started = calls("run")[1:]
    assert [values_of(words, "--ipc") for words in started] == [["host"], ["host"]]
    assert len({values_of(words, "--name")[0] for words in started}) == 2
    logs = [(first.folder / log).read_text() for log in first.jobs["work"].logs]
    assert logs == ["rank 0\n", "rank 1\n"]
    assert workspace.run(pipeline, environments="docker").jobs["work"].reused_from == first.name
    here = workspace.run(pipeline)
    changed = str(here.jobs["work"].reuse)
    assert changed.startswith(f"changed since run {first.name}: ")
    assert changed.endswith("the container image, the local Python and its packages")
    assert here.jobs["work"].image is None


def test_a_program_of_ours_that_a_job_starts_is_read_only(workspace: Any, calls: Any) -> None:
    (workspace.root / "data").mkdir()
    (workspace.root / "data" / "one").write_text("1")
    (workspace.code / "score.py").write_text("def run(files):\n    return files\n")
    task = {
        "type": "run_function",
        "code": "../src",
        "entry_script": "score.py",
        "environment": {"image": "example.org/one:1"},
    }
    job = {
        "type": "parallel",
        "mini_batch_size": "1",
        "input_data": "${{inputs.data}}",
        "inputs": {"data": {"type": "uri_folder", "path": "../data"}},
        "task": task,
    }

    record = workspace.run(workspace.pipeline({"score": job}), environments="docker")

    assert record.status == "completed", record.reason
    mounts = values_of(calls("run")[1], "--mount")
    assert next(mount for mount in mounts if "job_programs" in mount).endswith(",readonly")
    assert [mount.endswith(",readonly") for mount in mounts] == [False, False, True, True]


def test_dockerfiles_and_conda_files_are_built_once_for_their_content(workspace: Any, calls: Any) -> None:
    context = workspace.root / "context"
    context.mkdir()
    (context / "own.Dockerfile").write_text("FROM python:3.12\n")
    (workspace.root / "conda.yaml").write_text("dependencies: [python=3.12]\n")
    build = {"build": {"path": "../context", "dockerfile_path": "own.Dockerfile"}}
    conda = {"image": "mcr.microsoft.com/azureml/base:1", "conda_file": "../conda.yaml"}
    jobs = {
        name: {"component": workspace.component(name, "true", environment=environment)}
        for name, environment in {"built": build, "with_conda": conda, "again": conda}.items()
    }
    pipeline = workspace.pipeline(jobs)

    assert workspace.run(pipeline, environments="docker").status == "completed"

    of_context, of_conda = calls("build")
    assert of_context[:4] == ["build", "--network", "host", "--tag"]
    assert of_context[5:] == ["--file", str(context / "own.Dockerfile"), str(context)]
    dockerfile = Path(values_of(of_conda, "--file")[0])
    assert "FROM mcr.microsoft.com/azureml/base:1\n" in dockerfile.read_text()
    assert "RUN conda env create --prefix /azureml-envs/" in dockerfile.read_text()
    assert (dockerfile.parent / "conda.yaml").read_text() == "dependencies: [python=3.12]\n"
    (context / "own.Dockerfile").write_text("FROM python:3.13\n")
    assert workspace.run(pipeline, environments="docker").status == "completed"
    *_, changed = calls("build")
    assert len(calls("build")) == 3
    assert values_of(changed, "--file") == values_of(of_context, "--file")
    assert values_of(changed, "--tag") != values_of(of_context, "--tag")


def test_curated_environments_have_public_images_and_others_of_a_workspace_are_refused(
    workspace: Any, calls: Any
) -> None:
    curated = "azureml://registries/azureml/environments/acpt-pytorch-2.8-cuda12.6/versions/17"
    assert workspace.run(workspace.one_job("true", environment=curated), environments="docker").status == "completed"
    assert calls("pull") == [["pull", "mcr.microsoft.com/azureml/curated/acpt-pytorch-2.8-cuda12.6:17"]]

    with pytest.raises(SpecError) as refused:
        workspace.run(workspace.one_job("true", environment="azureml:ours:1"), environments="docker")

    (problem,) = refused.value.diagnostics
    assert problem.message == "job 'work': its environment is azureml:ours:1, whose image only the workspace knows"
    assert problem.hint.startswith("write the environment's image or build in the file")


def test_an_image_that_cannot_be_pulled_is_one_error_before_any_job(workspace: Any, calls: Any) -> None:
    pipeline = workspace.one_job("true", environment={"image": "example.org/missing:1"})

    with pytest.raises(SpecError) as refused:
        workspace.run(pipeline, environments="docker")

    (problem,) = refused.value.diagnostics
    assert problem.message == (
        "the image example.org/missing:1 is not on this machine and cannot be pulled: "
        "Error response from daemon: manifest for example.org/missing:1 not found"
    )
    assert problem.hint == "check its name, or sign in with `docker login`"
    assert not workspace.runs_folder.exists()
    assert calls("run") == []


def test_without_an_engine_the_run_says_what_is_missing(workspace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = workspace.one_job("true", environment={"image": "python:3.12"})
    monkeypatch.setenv("PATH", str(workspace.root))
    with pytest.raises(RunError, match="needs docker or podman, and neither is on PATH; install one, or use"):
        workspace.run(pipeline, environments="docker")

    silent = workspace.root / "docker"
    silent.write_text("#!/bin/sh\necho Cannot connect to the Docker daemon. >&2\nexit 1\n")
    silent.chmod(0o755)
    with pytest.raises(RunError, match=r"no container engine answers \(docker: Cannot connect to .*\); start it, or"):
        workspace.run(pipeline, environments="docker")

    monkeypatch.setenv("DOCKER_HOST", "ssh://elsewhere")
    with pytest.raises(UsageError, match="DOCKER_HOST is ssh://elsewhere, another machine"):
        workspace.run(pipeline, environments="docker")


def test_paths_with_commas_and_quotes_are_mounted(tmp_path: Path) -> None:
    assert bind_mount(Path('/a,"b'), read_only=True)[1] == 'type=bind,"source=/a,""b","destination=/a,""b",readonly'
