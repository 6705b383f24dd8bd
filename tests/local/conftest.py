"""A folder with tiny components and pipelines, and a runner for them that shows nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trainyard.foundation.run_record import RunRecord
from trainyard.local.display import Display
from trainyard.local.runner import RunOptions, run_pipeline
from trainyard.spec.loading import load_pipeline
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
        return load_pipeline(file)

    def run(self, file: Path, **options: Any) -> RunRecord:
        """Run a pipeline file in this process."""
        stream = io.StringIO()
        options = {"grace_seconds": 2.0, **options}
        try:
            return run_pipeline(
                load_pipeline(file), RunOptions(self.runs_folder, **options), Display(stream=stream, live=False)
            )
        finally:
            self.shown = stream.getvalue()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    for folder in ("src", "components", "pipelines"):
        (tmp_path / folder).mkdir()
    for script in DATA.glob("*.py"):
        (tmp_path / "src" / script.name).write_bytes(script.read_bytes())
    return Workspace(tmp_path)


def output_of(record: RunRecord, job: str, port: str) -> Path:
    """Where a job of a run wrote an output."""
    return record.folder / record.jobs[job].outputs[port]


@pytest.fixture(name="output_of")
def output_of_fixture() -> Any:
    return output_of
