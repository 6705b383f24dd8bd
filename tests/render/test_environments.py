"""The images that are built for jobs hold what the steps import, at the versions that the tests run with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from trainyard.render.project import Project
from trainyard.render.rendering import render

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENTS = ("trainyard", "trainyard-horovod", "trainyard-rocm")
EXTRAS = ("train", "lightning", "onnx")
"""What steps may import."""
NOT_OF_STEPS = {"skops", "huggingface-hub"}
"""What MLflow needs to save the scikit-learn models of other people's jobs, which run here and not in our images; and
what `trainyard model fetch` imports."""
IMPORTED_AS = {
    "pillow": "PIL",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
    "mlflow-skinny": "mlflow",
    "azureml-mlflow": "azureml.mlflow",
    "nvidia-ml-py": "pynvml",
}


def pins(text: str, python_version: str = "3.10") -> dict[str, str]:
    """The exact version of each package in a requirements file, on one version of Python."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    requirements = [Requirement(line) for line in lines if line]
    return {
        each.name: str(each.specifier)
        for each in requirements
        if each.marker is None or each.marker.evaluate({"python_version": python_version})
    }


def rendered(project: Project, name: str) -> str:
    return render(project, "t4").files[project.root / "environments" / name].text


def packages_of(root: Path, *extras: str) -> set[str]:
    """What pyproject.toml lists in extras."""
    table = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    return {Requirement(line).name for extra in extras for line in table[extra]}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_an_image_has_every_package_that_steps_import_but_torch(repository: Project, environment: str) -> None:
    installed = pins(rendered(repository, f"{environment}/requirements.txt"))
    assert set(installed) == packages_of(repository.root, *EXTRAS) - {"torch"} - NOT_OF_STEPS | {"azureml-mlflow"}
    assert all(version.startswith("==") for version in installed.values())


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_versions_are_those_that_the_tests_run_with(repository: Project, environment: str) -> None:
    tested = pins((repository.root / "constraints.txt").read_text(encoding="utf-8"))
    installed = pins(rendered(repository, f"{environment}/requirements.txt"))
    # azureml-mlflow is only of use on Azure ML.
    assert {name: version for name, version in installed.items() if tested.get(name) != version} == {
        "azureml-mlflow": installed["azureml-mlflow"]
    }


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_build_tries_each_package(repository: Project, environment: str) -> None:
    (line,) = [line for line in rendered(repository, f"{environment}/Dockerfile").splitlines() if "import " in line]
    imported = set(line.split("import ")[1].split(";")[0].split(", "))
    installed = pins(rendered(repository, f"{environment}/requirements.txt"))
    assert {IMPORTED_AS.get(name, name) for name in installed} <= imported | {"numpy"}


def test_the_image_of_tensorflow_has_what_its_step_imports(repository: Project) -> None:
    installed = pins(rendered(repository, "trainyard-tensorflow/requirements.txt"))
    tested = pins((repository.root / "constraints.txt").read_text(encoding="utf-8"))
    assert installed.pop("tensorflow") == tested["tensorflow-cpu"]
    assert {name for name, version in installed.items() if tested.get(name) != version} == {"azureml-mlflow"}
    assert packages_of(repository.root, "tensorflow") == {"tensorflow-cpu"}
