"""The record of a run that has not begun: every job waiting, every output where it will be."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone
from pathlib import Path

from trainyard.local.records import JobRecord, RunRecord
from trainyard.local.resolution import LocalPath, ResolvedJob, ResolvedPipeline
from trainyard.spec.model import Environment
from trainyard.spec.resolution import JobOutput


def new_record(name: str, folder: Path, resolved: ResolvedPipeline) -> RunRecord:
    """The record to begin with. Its id is the name and a random part, so that no other run has it."""
    pipeline = resolved.pipeline
    return RunRecord(
        name=name,
        id=f"{name}-{uuid.uuid4().hex[:12]}",
        pipeline=pipeline.name,
        pipeline_file=str(pipeline.file.resolve()),
        started=now(),
        experiment=pipeline.experiment_name or pipeline.name,
        inputs=dict(resolved.inputs),
        outputs={port: _output_path(source) for port, source in resolved.outputs.items()},
        jobs={job.name: _new_job(job) for job in resolved.jobs.values()},
        notes=list(resolved.notes),
        folder=folder,
    )


def now() -> str:
    """This moment in UTC, as ISO 8601."""
    return datetime.now(timezone.utc).isoformat()


def _new_job(job: ResolvedJob) -> JobRecord:
    component = job.component
    return JobRecord(
        component=component.name,
        depends_on=list(job.depends_on),
        nodes=job.nodes,
        processes_per_node=job.processes_per_node,
        distribution=job.distribution,
        environment=_environment_in_words(component.environment),
        inputs=inputs_in_words(job),
        outputs={port: _output_path(JobOutput(job.name, port)) for port in component.outputs},
    )


def inputs_in_words(job: ResolvedJob) -> dict[str, object]:
    """A job's inputs as its record has them: literals, and paths as text."""
    return {name: _input_in_words(source) for name, source in job.inputs.items()}


def _input_in_words(source: object) -> object:
    if isinstance(source, JobOutput):
        return _output_path(source)
    return str(source.path) if isinstance(source, LocalPath) else source


def _output_path(output: JobOutput) -> str:
    return f"jobs/{output.job}/outputs/{output.port}"


def _environment_in_words(environment: Environment | None) -> str | None:
    if environment is None:
        return None
    build = str(environment.build_path) if environment.build_path else None
    return environment.reference or environment.image or build
