"""What a newcomer does with an installed Trainyard and no checkout near: start a project, run it, add to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from trainyard.render.scaffolding import RECIPES

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with a wheel of this repository; what it depends on is that of this one."""
    root = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(root), str(ROOT)]
    subprocess.run(build, check=True, timeout=600)
    (wheel,) = root.glob("trainyard_azureml-*.whl")
    environment = root / "venv"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True, timeout=600
    )
    # A folder on the path, whose own .pth files are not followed: so it brings no Trainyard that is being worked on.
    (site_packages,) = (environment / "lib").glob("python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


@pytest.fixture
def run(installed: Path, tmp_path: Path) -> Run:
    """Run a program of the environment in a folder beneath `tmp_path`."""

    def run_program(*words: str, folder: str = "demo") -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return subprocess.run(
            [str(installed / words[0]), *words[1:]],
            cwd=tmp_path / folder, env=variables, capture_output=True, text=True, timeout=6000, check=False,
        )  # fmt: skip

    return run_program


@pytest.fixture(scope="module")
def forked(installed: Path, forked_python: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python for jobs that are spared their imports, with the Trainyard that is installed, and not this one."""
    (site_packages,) = (installed.parent / "lib").glob("python*/site-packages")
    python = tmp_path_factory.mktemp("forked") / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site_packages}:$PYTHONPATH exec {forked_python} "$@"\n')
    python.chmod(0o755)
    return str(python)


def succeed(finished: subprocess.CompletedProcess[str]) -> str:
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr


def assert_the_client_accepts(project: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import azure.ai.ml as azure_ml

        for file in sorted(project.glob("pipelines/*.yaml")):
            assert azure_ml.load_job(file)._validate(raise_error=False).passed, file
        for file in sorted(project.glob("components/*.yaml")):
            assert azure_ml.load_component(file)._validate(raise_error=False).passed, file
        from azure.ai.ml._utils._asset_utils import get_ignore_file, get_upload_files_from_folder

        source = project / "src"
        uploaded = {place for _, place in get_upload_files_from_folder(source, ignore_file=get_ignore_file(source))}
        own = {file.relative_to(source).as_posix() for file in source.glob("demo/*.py")}
        assert uploaded == {"trainyard.zip", *own}


def test_from_an_installed_wheel_to_a_trained_model(run: Run, installed: Path, forked: str, tmp_path: Path) -> None:
    where = succeed(run("python", "-c", "import trainyard; print(trainyard.__file__)", folder="."))
    assert where.startswith(str(installed.parent))

    assert "cd demo" in succeed(run("trainyard", "init", "demo", folder="."))
    assert "no findings" in succeed(run("trainyard", "lint"))
    succeed(run("trainyard", "render", "--check"))
    assert_the_client_accepts(tmp_path / "demo")
    assert "2 passed" in succeed(run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider"))

    quick = ("--set", "inputs.epochs=6", "--quiet", "--python", forked)  # test_running.py has all sixteen
    said = succeed(run("trainyard", "run", "pipelines/train.yaml", "--name", "first", *quick))
    assert "test accuracy" in said
    outputs = tmp_path / "demo/.trainyard/runs/first/jobs/evaluate/outputs/evaluation/evaluation.json"
    assert json.loads(outputs.read_text())["accuracy"] >= 0.95

    again = run("trainyard", "init", "demo", folder=".")
    assert again.returncode == 1
    assert "would be overwritten, so nothing was written" in again.stderr
    assert "demo/README.md" in again.stderr


ONE_AFTER_THE_OTHER = """
import shlex, sys
from trainyard.cli import main

for line in sys.argv[1:]:
    try:
        main(shlex.split(line))
    except SystemExit as ended:
        assert not ended.code, f"{line}: {ended.code}"
"""


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_is_without_findings_and_grows(run: Run, tmp_path: Path, recipe: str) -> None:
    def all_succeed(*lines: str) -> int:
        """Run commands in one process, which spares all but the first their imports; how often lint finds nothing."""
        return succeed(run("python", "-c", ONE_AFTER_THE_OTHER, *lines)).count("no findings")

    succeed(run("trainyard", "init", "demo", "--from", recipe, folder="."))
    assert all_succeed("new component count_files", "new pipeline count --component count_files", "lint") == 1
    assert_the_client_accepts(tmp_path / "demo")
    assert all_succeed("run pipelines/count.yaml --quiet", "render t4", "lint", "render nd96", "lint") == 2


def test_the_text_recipe_trains_its_own_task(run: Run, forked: str, tmp_path: Path) -> None:
    succeed(run("trainyard", "init", "demo", "--from", "fsdp", folder="."))
    assert "passed" in succeed(run(forked, "-m", "pytest", "-q", "-p", "no:cacheprovider"))
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(100):
        (texts / f"{number}.txt").write_text(f"{number} green bottles, hanging on the wall. " * 50)
    quick = [
        f"jobs.prepare_text.inputs.source={texts}",
        "inputs.vocabulary_size=512",
        "jobs.train_fsdp.inputs.max_steps=10",
        "jobs.evaluate.inputs.maximum_perplexity=1000000",
    ]
    flags = [word for setting in quick for word in ("--set", setting)]
    flags += ["--python", forked]
    assert "perplexity" in succeed(run("trainyard", "run", "pipelines/train.yaml", "--quiet", *flags))


def test_a_repository_that_exists_is_linted_against_what_it_has(run: Run, tmp_path: Path) -> None:
    (tmp_path / "demo" / "jobs").mkdir(parents=True)
    job = tmp_path / "demo" / "jobs" / "train.yml"
    job.write_text(
        "type: command\ncommand: python train.py\nenvironment: azureml:env:1\ncompute: azureml:gpu\nnmae: x\n"
    )
    (tmp_path / "demo" / ".vscode").mkdir()
    (tmp_path / "demo" / ".vscode" / "settings.json").write_text("{}")
    assert run("trainyard", "lint").returncode == 1

    told = succeed(run("trainyard", "init", "--existing"))
    assert "kept .vscode/settings.json" in told
    assert (tmp_path / "demo" / ".vscode" / "settings.json").read_text() == "{}"
    assert not (tmp_path / "demo" / "templates").exists()
    succeed(run("trainyard", "lint"))

    job.write_text(job.read_text() + "comand: x\n")
    assert "comand" in run("trainyard", "lint").stderr
