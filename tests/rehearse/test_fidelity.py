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
