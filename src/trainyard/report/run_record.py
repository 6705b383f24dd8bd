"""Reads run.json: what a local run wrote about itself and its jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trainyard.errors import UsageError

RUN_FORMAT = "trainyard.run/1"


class ReportError(UsageError):
    """A run folder that no report can be made of; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Attempt:
    """One start of a job: when, for how long, what each rank's process ended with, and why it ended early."""

    started: datetime | None
    duration_seconds: float | None
    exit_codes: dict[str, int]
    reason: str | None


@dataclass(frozen=True)
class JobRecord:
    """One job of a run.

    Paths in `outputs` and `logs` are relative to the run folder; `reuse` says why it ran or was not run again.
    """

    name: str
    status: str
    component: str
    depends_on: tuple[str, ...]
    nodes: int
    processes_per_node: int
    reused_from: str | None
    reuse: str | None
    duration_seconds: float | None
    attempts: tuple[Attempt, ...]
    inputs: dict[str, Any]
    outputs: dict[str, str]
    logs: tuple[str, ...]
    command: str
    environment: Any
    reason: str | None
    failed_rank: int | None
    error_lines: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """Processes over all nodes."""
        return self.nodes * self.processes_per_node

    @property
    def state(self) -> str:
        """The status, with `reused` in the place of `completed` where the job's results came from another run."""
        return "reused" if self.status == "completed" and self.reused_from else self.status


@dataclass(frozen=True)
class RunRecord:
    """A run: its jobs in the order of run.json, and the pipeline's own inputs and outputs."""

    name: str
    pipeline: str
    status: str
    reason: str | None
    notes: tuple[str, ...]
    started: datetime | None
    duration_seconds: float | None
    inputs: dict[str, Any]
    outputs: dict[str, str]
    jobs: dict[str, JobRecord]


def read_run_record(run_folder: Path) -> RunRecord:
    """What run.json in this folder says.

    Raises `ReportError` when the file is missing, is not JSON, is of another format than trainyard.run/1, or lacks
    what that format promises.
    """
    file = run_folder / "run.json"
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise ReportError(f"{file}: cannot be read ({reason}); is {run_folder} the folder of a run?") from error
    except ValueError as error:
        raise ReportError(f"{file}: is not JSON: {error}") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found != RUN_FORMAT:
        raise ReportError(f"{file}: its format is {found!r}, and this version of Trainyard reads {RUN_FORMAT!r} only")
    try:
        return _run(document)
    except KeyError as error:
        raise ReportError(f"{file}: {error.args[0]!r} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ReportError(f"{file}: does not have the form of {RUN_FORMAT}: {error}") from error


def _run(document: Mapping[str, Any]) -> RunRecord:
    return RunRecord(
        name=document["name"],
        pipeline=document["pipeline"],
        status=document["status"],
        reason=document.get("reason"),
        notes=tuple(document.get("notes") or ()),
        started=_moment(document.get("started")),
        duration_seconds=document.get("duration_s"),
        inputs=dict(document.get("inputs") or {}),
        outputs=dict(document.get("outputs") or {}),
        jobs={name: _job(name, job) for name, job in document["jobs"].items()},
    )


def _job(name: str, job: Mapping[str, Any]) -> JobRecord:
    return JobRecord(
        name=name,
        status=job["status"],
        component=job.get("component") or "",
        depends_on=tuple(job.get("depends_on") or ()),
        nodes=job.get("nodes") or 1,
        processes_per_node=job.get("processes_per_node") or 1,
        reused_from=job.get("reused_from"),
        reuse=job.get("reuse"),
        duration_seconds=job.get("duration_s"),
        attempts=tuple(_attempt(attempt) for attempt in job.get("attempts") or ()),
        inputs=dict(job.get("inputs") or {}),
        outputs={port: os.fspath(path) for port, path in (job.get("outputs") or {}).items()},
        logs=tuple(job.get("logs") or ()),
        command=job.get("command") or "",
        environment=job.get("environment"),
        reason=job.get("reason"),
        failed_rank=job.get("failed_rank"),
        error_lines=tuple(job.get("error_lines") or ()),
    )


def _attempt(attempt: Mapping[str, Any]) -> Attempt:
    return Attempt(
        started=_moment(attempt.get("started")),
        duration_seconds=attempt.get("duration_s"),
        exit_codes=dict(attempt.get("exit_codes") or {}),
        reason=attempt.get("reason"),
    )


def _moment(text: str | None) -> datetime | None:
    """An ISO 8601 moment in UTC. Python 3.10 does not read the `Z` that later ones do."""
    if text is None:
        return None
    moment = datetime.fromisoformat(text.removesuffix("Z") + "+00:00" if text.endswith("Z") else text)
    return moment.astimezone(timezone.utc) if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
