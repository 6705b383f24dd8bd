"""A folder with tiny components and pipelines, and a runner for them that shows nothing."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainyard.rehearse.display import Display
from trainyard.rehearse.run_options import RunOptions
from trainyard.rehearse.runner import run_pipeline
from trainyard.settings.run_record import RunRecord
from trainyard.spec.loading import load_job
from trainyard.spec.model import Pipeline

DATA = Path(__file__).parent / "data"


@dataclass
class Workspace:
    """Writes YAML (as JSON, which YAML holds) and runs it; `shown` is what the last run's display printed."""

    root: Path
    shown: str = ""
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def runs_folder(self) -> Path:
        return self.root / ".trainyard" / "runs"

    @property
    def code(self) -> Path:
        return self.root / "src"

    def component(
        self,
        name: str,
        command: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> str:
        """Write a component with the snapshot `src`; return the reference that a job of a pipeline uses."""
        document = {
            "name": name,
            "type": "command",
            "command": command,
            "code": "../src",
            "environment": "azureml:some_environment:1",
            "inputs": dict(inputs or {}),
            "outputs": {port: {"type": kind} for port, kind in (outputs or {}).items()},
            **fields,
        }
        file = self.root / "components" / f"{name}.yaml"
        file.write_text(json.dumps({key: value for key, value in document.items() if value is not None}, indent=1))
        return f"../components/{name}.yaml"

    def pipeline(self, jobs: Mapping[str, Mapping[str, Any]], *, name: str = "demo", **fields: Any) -> Path:
        """Write a pipeline of command jobs; return its file."""
        file = self.root / "pipelines" / f"{name}.yaml"
        written = {job: {"type": "command", **definition} for job, definition in jobs.items()}
        document = {"type": "pipeline", "settings": {"default_compute": "azureml:cpu"}, **fields, "jobs": written}
        file.write_text(json.dumps(document, indent=1))
        return file

    def one_job(self, command: str, **component: Any) -> Path:
        """A pipeline `demo` of one job, `work`, which runs this command."""
        return self.pipeline({"work": {"component": self.component("worker", command, **component)}})

    def load(self, file: Path) -> Pipeline:
        return load_job(file, strict=True)

    def run(self, file: Path, **options: Any) -> RunRecord:
        """Run a pipeline file in this process."""
        stream = io.StringIO()
        options = {"grace_seconds": 2.0, **options}
        try:
            return run_pipeline(
                load_job(file, strict=True), RunOptions(self.runs_folder, **options), Display(stream=stream, live=False)
            )
        finally:
            self.shown = stream.getvalue()


def new_workspace(folder: Path) -> Workspace:
    """A workspace in an empty folder, with the scripts of `data/` as its snapshot."""
    for part in ("src", "components", "pipelines"):
        (folder / part).mkdir()
    for script in DATA.glob("*.py"):
        (folder / "src" / script.name).write_bytes(script.read_bytes())
    return Workspace(folder)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return new_workspace(tmp_path)


# A shell within other launchers' jobs, an activated environment, and what its user works with.
SHELL = {
    **dict.fromkeys(("HOME", "LANG", "TZ", "HTTPS_PROXY", "SSL_CERT_FILE", "OMP_NUM_THREADS"), "/of/this/machine"),
    **dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "NODE_RANK", "TF_CONFIG"), "from the shell"),
    **dict.fromkeys(("OMPI_COMM_WORLD_RANK", "AZ_BATCH_MASTER_NODE", "AZUREML_PARAMETER_old"), "from the shell"),
    **dict.fromkeys(("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MLFLOW_RUN_ID", "RAY_ADDRESS"), "from the shell"),
    **dict.fromkeys(("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH"), "from the shell"),
    **dict.fromkeys(("TRAINYARD_ANYTHING", "WANDB_API_KEY", "EDITOR", "PS1", "anything"), "from the shell"),
}
SIZES = list(itertools.product((1, 2), (1, 2)))
DUMP = "python -c 'import json, os; print(json.dumps(dict(os.environ)))'"


@dataclass(frozen=True)
class DumpedEnvironments:
    """What the processes of one run found in their environments: jobs of each distribution and size."""

    record: RunRecord

    def of(self, distribution: str, nodes: int, processes: int) -> list[dict[str, str]]:
        """The environment of each process of a job, by rank; `processes` are those of one node."""
        assert self.record.status == "completed", self.record.reason
        logs = self.record.jobs[f"{distribution}_{nodes}_{processes}"].logs
        return [json.loads((self.record.folder / log).read_text().splitlines()[-1]) for log in logs]


@pytest.fixture(scope="session")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> DumpedEnvironments:
    """One run, started from a shell full of variables, whose jobs print their environments."""
    workspace = new_workspace(tmp_path_factory.mktemp("dumped"))
    component = workspace.component("worker", DUMP, outputs={"seen": "uri_folder"})
    # The parameter server is ended with the workers: they give it time to write.
    slow = workspace.component("slow_worker", f"{DUMP} && sleep 1", outputs={"seen": "uri_folder"})
    jobs: dict[str, dict[str, Any]] = {}
    for nodes, processes in SIZES:
        resources = {"resources": {"instance_count": nodes, "instance_type": "Standard_ND96asr_v4"}}
        jobs[f"none_{nodes}_{processes}"] = {"component": component, **resources}
        for kind in ("pytorch", "mpi"):
            distribution = {"type": kind, "process_count_per_instance": processes}
            jobs[f"{kind}_{nodes}_{processes}"] = {"component": component, "distribution": distribution, **resources}
        cluster = {"type": "tensorflow", "worker_count": nodes * processes, "parameter_server_count": 1}
        jobs[f"tensorflow_{nodes}_{processes}"] = {"component": slow, "distribution": cluster, **resources}
    with pytest.MonkeyPatch.context() as shell:
        for name in os.environ.keys() - {"PATH"}:
            shell.delenv(name)
        for name, value in SHELL.items():
            shell.setenv(name, value)
        record = workspace.run(workspace.pipeline(jobs))
    return DumpedEnvironments(record)


def output_of(record: RunRecord, job: str, port: str) -> Path:
    """Where a job of a run wrote an output."""
    return record.folder / record.jobs[job].outputs[port]


@pytest.fixture(name="output_of")
def output_of_fixture() -> Any:
    return output_of


def decisions(record: RunRecord, job: str) -> str:
    """What the runner decided for a job of a run, in the job's own log of that."""
    return (record.folder / "jobs" / job / "system_logs" / "job.log").read_text()


@pytest.fixture(name="decisions")
def decisions_fixture() -> Any:
    return decisions
