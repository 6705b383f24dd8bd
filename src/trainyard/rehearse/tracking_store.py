"""The local MLflow store in place of Azure ML's: experiments and runs exist before a job starts, as they do there.

The files are those of MLflow's file store. They are written here because importing MLflow takes half a second, and the
author's side does not need it otherwise. A test checks them with the real client.
"""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from pathlib import Path
from typing import Literal, NamedTuple

from trainyard.rehearse.errors import writing
from trainyard.settings.files import replace_text

# mlflow.entities.RunStatus
_STATUS_CODES = {"RUNNING": 1, "FINISHED": 3, "FAILED": 4, "KILLED": 5}
_LOCAL_SOURCE = 4  # mlflow.entities.SourceType.LOCAL

EndStatus = Literal["FINISHED", "FAILED", "KILLED"]


class RunIdentity(NamedTuple):
    """How MLflow and the variables of the contract identify a run of a pipeline, or of one of its jobs."""

    run_id: str
    root_run_id: str
    """The id of the pipeline's run: the same for all of its jobs."""

    experiment: str
    tracking_uri: str

    @property
    def experiment_id(self) -> str:
        """A GUID that is the same for the same experiment name, everywhere."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"trainyard:experiment:{self.experiment}"))

    def of_job(self, job: str) -> RunIdentity:
        """Return the identity of a job's run within this run of a pipeline.

        MLflow takes no dots, which the names of jobs in nested pipelines have; no job has a hyphen in their place.
        """
        return self._replace(run_id=f"{self.root_run_id}_{job.replace('.', '-')}")


class TrackingStore(NamedTuple):
    """An MLflow file store in a folder. Its methods raise `RunError` when the disk refuses."""

    folder: Path

    def identity(self, experiment: str, run_id: str) -> RunIdentity:
        """Return the identity of a pipeline's run in this store."""
        return RunIdentity(run_id, run_id, experiment, tracking_uri=self.folder.resolve().as_uri())

    def start_run(self, run: RunIdentity, name: str) -> None:
        """Make the run, and its experiment if necessary; a run that exists (its job was resumed) runs again."""
        with writing(self.folder):
            # The client makes these when they are missing, and two ranks that start together would both try.
            (self.folder / ".trash").mkdir(parents=True, exist_ok=True)
            _write_experiment(self.folder / "0", "Default")
            _write_experiment(self.folder / run.experiment_id, run.experiment)
            folder = self.folder_of(run)
            if (folder / "meta.yaml").exists():
                _set(folder, status=_STATUS_CODES["RUNNING"], end_time=None)
            else:
                _write_run(folder, name, run.root_run_id if run.run_id != run.root_run_id else None)

    def end_run(self, run: RunIdentity, status: EndStatus) -> None:
        """Record how a run ended."""
        with writing(self.folder):
            _set(self.folder_of(run), status=_STATUS_CODES[status], end_time=_milliseconds())

    def end_killed(self, run: RunIdentity) -> None:
        """Record that a pipeline's run was killed, and what ran in it."""
        for folder in self.folders_of(run):
            if f"\nstatus: {_STATUS_CODES['RUNNING']}\n" in (folder / "meta.yaml").read_text(encoding="utf-8"):
                self.end_run(run._replace(run_id=folder.name), "KILLED")

    def take_over(self, source: Path, run: RunIdentity, name: str) -> None:
        """Make a run of what another has logged, whose folder may be removed; nothing if it has logged nothing."""
        logged = [source / part for part in ("metrics", "params", "artifacts") if any(source.glob(f"{part}/*"))]
        if not logged:
            return
        self.start_run(run, name)
        with writing(self.folder):
            for part in (*logged, source / "tags"):
                own = shutil.ignore_patterns("mlflow.runName", "mlflow.parentRunId")
                shutil.copytree(part, self.folder_of(run) / part.name, symlinks=True, ignore=own, dirs_exist_ok=True)
        self.end_run(run, "FINISHED")

    def metric(self, run: RunIdentity, name: str) -> list[float]:
        """Return the values of a metric that a run has logged, in their order; empty if it has not."""
        try:
            lines = (self.folder_of(run) / "metrics" / name).read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        return [float(line.split()[1]) for line in lines if len(line.split()) > 1]

    def folder_of(self, run: RunIdentity) -> Path:
        """Return where a run's metrics, parameters and artifacts are."""
        return self.folder / run.experiment_id / run.run_id

    def folders_of(self, run: RunIdentity) -> list[Path]:
        """Return the folders of a pipeline's run, and of its jobs and their trials, whose ids begin with its own."""
        beside = self.folder_of(run).parent.glob("*/meta.yaml")
        return [file.parent for file in beside if f"{file.parent.name}_".startswith(f"{run.run_id}_")]


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
            "run_uuid": folder.name,  # which MLflow 2 requires
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
    replace_text(file, text, is_durable=False)  # run.json, which is waited for, says the same


def _write_meta(folder: Path, fields: dict[str, object]) -> None:
    """Write YAML with JSON values, which YAML includes."""
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in fields.items())
    replace_text(folder / "meta.yaml", text, is_durable=False)


def _milliseconds() -> int:
    return int(time.time() * 1000)
