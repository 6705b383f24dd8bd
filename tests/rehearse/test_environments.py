"""What the Python here lacks of an environment's files, and virtual environments that are built from them."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.environment_packages import differences, installed_versions, pip_lines, wanted_packages
from trainyard.rehearse.errors import RunError
from trainyard.spec.diagnostic import Span
from trainyard.spec.model import Environment

HERE = Path(sys.executable)
NUMPY = installed_versions()["numpy"]
CONDA = f"""name: training
channels: [conda-forge]
dependencies:
  - python=2.7
  - pip
  - numpy={NUMPY.rpartition(".")[0]}
  - conda-forge::no_such-package>=1.5
  - pip:
      - --extra-index-url https://example.org/simple
      - pandas[all]==0.1.0
      - tomli; sys_platform == "no_such_system"
      - ./a_local_folder
"""


def with_conda(folder: Path, text: str) -> Environment:
    file = folder / "conda.yaml"
    file.write_text(text)
    return Environment(Span(file), image="x", conda_file=file)


def test_packages_are_read_from_conda_files_and_compared(tmp_path: Path) -> None:
    wanted = wanted_packages(with_conda(tmp_path, CONDA))

    assert [package.name for package in wanted] == ["python", "numpy", "no-such-package", "pandas"]
    missing, others = differences(wanted, HERE, installed_versions())
    assert missing == ["no-such-package (conda.yaml:7)"]
    pandas = installed_versions()["pandas"]
    here = ".".join(map(str, sys.version_info[:3]))
    assert others == [
        f"python {here} instead of ==2.7.* (conda.yaml:4)",
        f"pandas {pandas} instead of ==0.1.0 (conda.yaml:10)",
    ]


def test_requirements_of_a_build_context_are_read_with_what_they_include(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r base-requirements.txt\nnumpy==0.1  # old\n\n--no-binary :all:\n")
    (tmp_path / "base-requirements.txt").write_text("-r requirements.txt\nno-such-package\n")

    environment = Environment(Span(tmp_path), build_path=tmp_path, dockerfile="Dockerfile")

    assert {package.name for package in wanted_packages(environment)} == {"no-such-package", "numpy"}


def test_a_build_under_another_name_is_not_missing(tmp_path: Path) -> None:
    found = {"tensorflow-cpu": "2.21.0"}
    environment = with_conda(tmp_path, "dependencies: [pip: [tensorflow==2.21.0]]")
    assert differences(wanted_packages(environment), HERE, found) == ([], [])


def test_a_run_warns_once_for_an_environment_and_lists_everything(workspace: Any) -> None:
    (workspace.root / "conda.yaml").write_text(CONDA)
    uses = {"environment": {"image": "x", "conda_file": "../conda.yaml"}}
    one, other = (workspace.component(name, "true", **uses) for name in ("one", "other"))

    record = workspace.run(workspace.pipeline({"one": {"component": one}, "other": {"component": other}}))

    (note,) = record.notes
    assert note.startswith(
        "one and 1 more: this Python differs from conda.yaml: missing: no-such-package; other versions:"
    )
    assert note in workspace.shown
    listed = (record.folder / "environments.txt").read_text().splitlines()
    assert listed[0].endswith("conda.yaml, for one, other, compared with " + sys.executable)
    assert "  missing: no-such-package (conda.yaml:7)" in listed


def test_an_environment_that_this_python_matches_has_no_warning(workspace: Any) -> None:
    (workspace.root / "conda.yaml").write_text(f"dependencies:\n  - python\n  - pip: ['numpy=={NUMPY}']\n")
    file = workspace.one_job("true", environment={"image": "x", "conda_file": "../conda.yaml"})

    assert workspace.run(file).notes == []


def wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel with one module of this name, which needs no package index."""
    file = folder / f"{name}-{version}-py3-none-any.whl"
    information = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = '{version}'\n")
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")
    return file


@pytest.mark.slow
def test_a_virtual_environment_is_built_once_and_its_job_runs_in_it(
    workspace: Any, output_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    file = wheel(workspace.root, "only_in_the_venv", "1.2")
    (workspace.root / "conda.yaml").write_text(f"dependencies:\n  - python>=3.8\n  - pip: ['{file}']\n")
    command = "python -c 'import only_in_the_venv as m; print(m.VERSION)' > '${{outputs.version}}'"
    pipeline = workspace.one_job(
        command, outputs={"version": "uri_file"}, environment={"image": "x", "conda_file": "../conda.yaml"}
    )

    record = workspace.run(pipeline, environments="venv")

    assert (record.status, record.notes) == ("completed", []), record.reason
    assert output_of(record, "work", "version").read_text() == "1.2\n"
    assert "building the environment of" in workspace.shown
    assert "built in" in workspace.shown
    again = workspace.run(pipeline, environments="venv")
    assert "building" not in workspace.shown
    assert again.jobs["work"].reused_from == record.name
    elsewhere = workspace.run(pipeline)
    assert "the local Python and its packages" in str(elsewhere.jobs["work"].reuse)


@pytest.mark.slow
def test_an_environment_that_cannot_be_built_is_one_clear_error(
    workspace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (workspace.root / "conda.yaml").write_text("dependencies:\n  - pip: ['no-such-package==1.0']\n")
    pipeline = workspace.one_job("true", environment={"image": "x", "conda_file": "../conda.yaml"})

    with pytest.raises(RunError, match=r"conda\.yaml: its packages cannot be installed here: .*no-such-package==1\.0"):
        workspace.run(pipeline, environments="venv")

    assert not workspace.runs_folder.exists()


def test_a_python_that_is_not_here_is_named(workspace: Any) -> None:
    (workspace.root / "conda.yaml").write_text("dependencies:\n  - python=2.7\n  - pip: ['numpy']\n")
    pipeline = workspace.one_job("true", environment={"image": "x", "conda_file": "../conda.yaml"})

    with pytest.raises(RunError, match=r"conda\.yaml:2: asks for Python ==2\.7\.\*, which is not on PATH; install it"):
        workspace.run(pipeline, environments="venv")


@pytest.mark.parametrize("listed", ["5", "numpy", "{numpy: 1}"])
def test_what_stands_under_pip_and_is_no_list_names_no_package(tmp_path: Path, listed: str) -> None:
    environment = with_conda(tmp_path, f"dependencies:\n  - pandas\n  - pip: {listed}\n")
    assert [package.name for package in wanted_packages(environment)] == ["pandas"]


def test_conda_packages_are_installed_by_their_names_on_pypi(tmp_path: Path) -> None:
    text = "dependencies:\n  - python=3.11\n  - pytorch=2.1\n  - pip:\n      - -r more.txt\n      - pandas[all]>=2\n"

    lines = pip_lines(with_conda(tmp_path, text))

    assert lines == ["torch==2.1.*", f"-r {tmp_path / 'more.txt'}", "pandas[all]>=2"]


def test_jobs_of_other_environments_run_with_this_python(workspace: Any) -> None:
    record = workspace.run(workspace.one_job("true"), environments="venv")

    assert record.status == "completed"
    assert f"work: its environment has no conda or pip file: it runs with {HERE}" in workspace.shown
