"""Where a rehearsal could be kinder than the cluster: jobs that would pass here and fail there, or the reverse."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Project:
    """The current folder, with a job, and `trainyard run` in it."""

    folder: Path
    trainyard: Callable[..., Any]
    runs: int = 0

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def run(self, job: Mapping[str, Any], *options: str) -> Any:
        """Run a command job; `record` is its record then."""
        document = {"type": "command", "environment": "azureml:any:1", "compute": "azureml:cpu", **job}
        file = self.write("job.yaml", json.dumps(document))
        self.runs += 1
        return self.trainyard("run", str(file), "--run-dir", str(self.run_folder), *options)

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / f"run-{self.runs}"

    @property
    def record(self) -> dict[str, Any]:
        """The run.json of the last run."""
        record: dict[str, Any] = json.loads((self.run_folder / "run.json").read_text(encoding="utf-8"))
        return record


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainyard: Callable[..., Any]) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, trainyard)


PYTORCH_ON_EACH_OF_EIGHT = {"type": "pytorch", "process_count_per_instance": 8}


@pytest.mark.parametrize(
    ("distribution", "nodes", "most", "shape"),
    [
        (None, 5, 4, "5 processes (5 x 1) were reduced to 2 (2 x 1)"),
        (None, 7, 4, "7 processes (7 x 1) were reduced to 2 (2 x 1)"),
        ({"type": "pytorch", "process_count_per_instance": 7}, 1, 4, "7 processes (1 x 7) were reduced to 2 (1 x 2)"),
        (PYTORCH_ON_EACH_OF_EIGHT, 8, 4, "64 processes (8 x 8) were reduced to 4 (2 x 2)"),
        (PYTORCH_ON_EACH_OF_EIGHT, 5, 2, "40 processes (5 x 8) were reduced to 2 (2 x 1)"),
        (
            {"type": "tensorflow", "worker_count": 8, "parameter_server_count": 3},
            11,
            4,
            "11 processes (8 workers and 3 parameter servers) were reduced to 4 (2 workers and 2 parameter servers)",
        ),
    ],
)
def test_fewer_processes_are_of_the_same_kind(
    project: Project, distribution: dict[str, Any] | None, nodes: int, most: int, shape: str
) -> None:
    job: dict[str, Any] = {"command": "echo node $AZUREML_CR_NODE_RANK", "resources": {"instance_count": nodes}}
    if distribution is not None:
        job["distribution"] = distribution

    run = project.run(job, "--max-processes", str(most))

    assert run.exit_code == 0, run.stderr
    line = f"{shape} by --max-processes {most}"
    (noted,) = project.record["notes"]
    assert noted.endswith(line), noted
    assert sum(line in shown for shown in (run.stdout + run.stderr).splitlines()) == 1
    (ran,) = project.record["jobs"].values()
    assert ran["nodes"] >= min(2, nodes)


def test_one_process_for_several_nodes_is_what_was_asked_for_and_said_to_prove_less(project: Project) -> None:
    run = project.run({"command": "true", "resources": {"instance_count": 2}}, "--max-processes", "1")

    assert run.exit_code == 0, run.stderr
    (noted,) = project.record["notes"]
    assert noted.endswith("by --max-processes 1, which leaves out what happens between nodes")


# The manner of azureml-examples' hello-world-output-data.yml: nothing is quoted, since no path of Azure ML needs it.
UNQUOTED = """mkdir -p ${{outputs.made}}/within
cp ${{inputs.data}} ${{outputs.made}}/within/
echo at $PWD
echo in $(pwd)"""


@pytest.mark.parametrize("name", ["plain", "with a space", "größe", "it's $HOME"])
def test_a_job_sees_no_path_that_needs_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainyard: Callable[..., Any], name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    project = Project(folder, trainyard)
    project.write("data.txt", "of the project\n")
    job = {
        "command": UNQUOTED,
        "inputs": {"data": {"type": "uri_file", "path": "./data.txt"}},
        "outputs": {"made": {"type": "uri_folder"}},
    }

    run = project.run(job, "--strict")

    assert run.exit_code == 0, run.stderr
    (ran,) = project.record["jobs"].values()
    made = project.run_folder / ran["outputs"]["made"]
    assert [file.relative_to(made).as_posix() for file in made.rglob("*.txt")] == ["within/data.txt"]
    (log,) = ran["logs"]
    words = (project.run_folder / log).read_text().split()
    assert words[0::2] == ["at", "in"]
    assert len(words) == 4, "each path is one word"
    assert all(word.isascii() and "'" not in word for word in words)
    assert {file.name for file in folder.iterdir()} <= {"data.txt", "job.yaml", "runs", ".trainyard", ".amlignore"}
    assert (project.run_folder / "jobs" / "job" / "data" / "made").resolve() == made, "also after the run"


def test_a_failure_names_the_paths_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainyard: Callable[..., Any]
) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    monkeypatch.chdir(folder)
    project = Project(folder, trainyard)
    command = "echo step: error: there is no ${{outputs.made}}/absent; exit 2"

    run = project.run({"command": command, "outputs": {"made": {"type": "uri_folder"}}})

    assert run.exit_code == 1
    (ran,) = project.record["jobs"].values()
    assert f"{project.run_folder / ran['outputs']['made']}/absent" in ran["reason"]
