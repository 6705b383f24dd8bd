"""The MLflow store that stands in for Azure ML's: experiments and runs exist before a job starts, as they do there.

The files are those of MLflow's own file store; they are written here because importing MLflow takes half a second and
the author's side does without it. A test holds them against the real client.
"""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainyard.local.records import cannot_write
from trainyard.local.whole_files import replace_text

# mlflow.entities.RunStatus
_STATUS_CODES = {"RUNNING": 1, "FINISHED": 3, "FAILED": 4, "KILLED": 5}
_LOCAL_SOURCE = 4  # mlflow.entities.SourceType.LOCAL

EndStatus = Literal["FINISHED", "FAILED", "KILLED"]


def experiment_id_of(experiment: str) -> str:
    """A GUID that is the same for the same experiment name, everywhere."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"trainyard:experiment:{experiment}"))


def job_run_id(run_id: str, job: str) -> str:
    """The id of a job's MLflow run, beneath that of the run it belongs to."""
    return f"{run_id}_{job}"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(folder, error) from error


@dataclass(frozen=True)
class TrackingStore:
    """A file store of MLflow in a folder."""

    folder: Path

    @property
    def uri(self) -> str:
        """What MLFLOW_TRACKING_URI says."""
        return self.folder.resolve().as_uri()

    def create_experiment(self, experiment: str) -> str:
        """Make the experiment where it does not exist yet; gives its id. Raises `RunError`."""
        experiment_id = experiment_id_of(experiment)
        with _writing(self.folder):
            # The client makes these when they are missing, and two ranks that start together would both try.
            (self.folder / ".trash").mkdir(parents=True, exist_ok=True)
            _write_experiment(self.folder / "0", "Default")
            _write_experiment(self.folder / experiment_id, experiment)
        return experiment_id

    def start_run(self, experiment_id: str, run_id: str, run_name: str, parent_run_id: str | None) -> None:
        """Make a run, or set an existing one running again (a resumed job logs on where it was). Raises `RunError`."""
        folder = self.folder / experiment_id / run_id
        with _writing(folder):
            if (folder / "meta.yaml").exists():
                _set(folder, status=_STATUS_CODES["RUNNING"], end_time=None)
            else:
                _write_run(folder, run_name, parent_run_id)

    def remove_run(self, experiment_id: str, run_id: str) -> None:
        """Take a run away; one that is not there is no error."""
        shutil.rmtree(self.folder / experiment_id / run_id, ignore_errors=True)

    def end_run(self, experiment_id: str, run_id: str, status: EndStatus) -> None:
        """Write how a run ended. Raises `RunError`."""
        folder = self.folder / experiment_id / run_id
        with _writing(folder):
            _set(folder, status=_STATUS_CODES[status], end_time=_milliseconds())


def _write_experiment(folder: Path, name: str) -> None:
    if (folder / "meta.yaml").exists():
        return
    folder.mkdir(exist_ok=True)
    now = _milliseconds()
    _write_meta(
        folder,
        {
            "artifact_location": folder.resolve().as_uri(),
            "creation_time": now,
            "experiment_id": folder.name,
            "last_update_time": now,
            "lifecycle_stage": "active",
            "name": name,
        },
    )


def _write_run(folder: Path, run_name: str, parent_run_id: str | None) -> None:
    for part in ("artifacts", "metrics", "params", "tags"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "tags" / "mlflow.runName").write_text(run_name, encoding="utf-8")
    if parent_run_id is not None:
        (folder / "tags" / "mlflow.parentRunId").write_text(parent_run_id, encoding="utf-8")
    _write_meta(
        folder,
        {
            "artifact_uri": (folder / "artifacts").resolve().as_uri(),
            "end_time": None,
            "entry_point_name": "",
            "experiment_id": folder.parent.name,
            "lifecycle_stage": "active",
            "run_id": folder.name,
            "run_name": run_name,
            "source_name": "",
            "source_type": _LOCAL_SOURCE,
            "source_version": "",
            "start_time": _milliseconds(),
            "status": _STATUS_CODES["RUNNING"],
            "tags": [],
            "user_id": "trainyard",
        },
    )


def _set(folder: Path, *, status: int, end_time: int | None) -> None:
    file = folder / "meta.yaml"
    text = file.read_text(encoding="utf-8")
    text = re.sub(r"^status:.*$", f"status: {status}", text, flags=re.MULTILINE)
    text = re.sub(r"^end_time:.*$", f"end_time: {json.dumps(end_time)}", text, flags=re.MULTILINE)
    replace_text(file, text)


def _write_meta(folder: Path, fields: dict[str, object]) -> None:
    """YAML whose values are written as JSON, which YAML is a superset of."""
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())
    replace_text(folder / "meta.yaml", text)


def _milliseconds() -> int:
    return int(time.time() * 1000)
