"""From a resolved pipeline to what will run here: paths on this machine, and how many processes it can take.

All of it happens before the first process starts, so that a mistake in the last job costs no training.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from trainyard.local.errors import UsageError, error_at
from trainyard.local.machine import available_gpus, available_processors
from trainyard.spec.diagnostic import Span
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component, Pipeline, Resources
from trainyard.spec.resolution import DataPath, JobOutput, JobUse, Known, Resolution, settled
from trainyard.spec.set_arguments import COMMAND_LINE

_REMOTE = re.compile(r"^(azureml:|[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
# More processes than this on a processor mostly wait for each other, and for memory.
_PROCESSES_PER_PROCESSOR = 4


@dataclass(frozen=True)
class LocalPath:
    """A file or folder on this machine that a job reads; as written, where, and the key that `--set` takes for it."""

    path: Path
    written: str
    span: Span
    settable: str


Source = ParameterValue | LocalPath | JobOutput
"""What an input is: a literal, local data, or another job's output. An optional input that is not given is absent."""


@dataclass(frozen=True)
class ResolvedJob:
    """A job with nothing left open but the paths of the run folder."""

    use: JobUse
    depends_on: tuple[str, ...]
    inputs: dict[str, Source]
    environment_variables: dict[str, str]
    distribution: str | None
    nodes: int
    processes_per_node: int

    @property
    def name(self) -> str:
        """The job's name in the pipeline, dotted where it belongs to a pipeline within."""
        return self.use.name

    @property
    def component(self) -> Component:
        """What the job runs."""
        return self.use.component

    @property
    def resources(self) -> Resources | None:
        """What the job asks for."""
        return self.use.job.effective_resources

    @property
    def processes(self) -> int:
        """Processes over all nodes."""
        return self.nodes * self.processes_per_node


@dataclass(frozen=True)
class ResolvedPipeline:
    """The jobs in an order in which they can run, where the pipeline's outputs come from, and what was changed."""

    pipeline: Pipeline
    inputs: dict[str, ParameterValue]
    jobs: dict[str, ResolvedJob]
    outputs: dict[str, JobOutput]
    notes: tuple[str, ...]


def resolve(
    pipeline: Pipeline, resolution: Resolution, *, selected: Collection[str], max_processes: int | None = None
) -> ResolvedPipeline:
    """Return the pipeline as it runs on this machine.

    Data inputs must exist for the jobs in `selected`; the others only provide their outputs. Raises `SpecError` at the
    line of whatever cannot be run here, `UsageError` where the command line gave it.
    """
    if max_processes is not None and max_processes < 1:
        raise UsageError(f"--max-processes {max_processes}: at least one process is needed")
    notes: list[str] = []
    jobs = {}
    for name in resolution.order():
        job = _job(resolution, name, max_processes, notes)
        jobs[name] = job
        if name in selected:
            _check_data(job)
            if max_processes is None:
                notes += _overload(name, job.processes)
    inputs = {name: found.value for name, found in resolution.inputs.items() if isinstance(found, Known)}
    shown = {name: value.text if isinstance(value, DataPath) else value for name, value in inputs.items()}
    literals = {name: value for name, value in shown.items() if isinstance(value, (str, int, float))}
    return ResolvedPipeline(pipeline, literals, jobs, resolution.outputs, tuple(notes))


def _job(resolution: Resolution, name: str, max_processes: int | None, notes: list[str]) -> ResolvedJob:
    use = resolution.jobs[name]
    inputs: dict[str, Source] = {}
    for port, resolved in use.inputs.items():
        value = settled(resolved)
        if isinstance(value, DataPath):
            assert isinstance(resolved, Known)
            inputs[port] = _local_path(value, resolved)
        elif isinstance(value, (str, int, float, JobOutput)):
            inputs[port] = value
    distribution = _distribution(use)
    nodes, processes_per_node = _capped(use, max_processes, notes)
    variables = {name: str(settled(resolved)) for name, resolved in use.environment_variables.items()}
    depends_on = tuple(sorted(resolution.waits_for[name]))
    return ResolvedJob(use, depends_on, inputs, variables, distribution, nodes, processes_per_node)


def _local_path(data: DataPath, resolved: Known) -> LocalPath:
    text = data.text.removeprefix("file://").removeprefix("file:")
    span = resolved.written.span
    folder = Path.cwd() if span.file == COMMAND_LINE else span.file.resolve().parent
    return LocalPath((folder / Path(text).expanduser()).resolve(), text, span, resolved.key)


# What a port's data must be on disk; any other kind may be either.
_KINDS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    "uri_file": ("file", Path.is_file),
    "uri_folder": ("folder", Path.is_dir),
}


def _check_data(job: ResolvedJob) -> None:
    for name, source in job.inputs.items():
        if not isinstance(source, LocalPath):
            continue
        if _REMOTE.match(source.written):
            raise error_at(
                source.span,
                f"job {job.name!r}: input {name!r} is remote data ({source.written}), which a local run does not fetch",
                f"give a local copy with --set {source.settable}=PATH",
            )
        expected, exists = _KINDS.get(job.component.inputs[name].type, ("file or folder", Path.exists))
        if not exists(source.path):
            raise error_at(
                source.span,
                f"job {job.name!r}: input {name!r}: there is no {expected} {source.path}",
                f"correct the path, or give another with --set {source.settable}=PATH",
            )


def _distribution(use: JobUse) -> str | None:
    distribution = use.job.effective_distribution
    if distribution is None or distribution.type == "pytorch":
        return None if distribution is None else "pytorch"
    raise error_at(
        distribution.span,
        f"job {use.name!r}: distribution {distribution.type!r} is not run locally yet",
        "use pytorch or none; on Azure ML the job runs as it is",
    )


def _capped(use: JobUse, limit: int | None, notes: list[str]) -> tuple[int, int]:
    """Nodes and processes per node, at most `limit` in all."""
    counts = use.processes()
    nodes, per_node = counts.nodes, counts.processes_per_node
    if limit is None or nodes * per_node <= limit:
        return nodes, per_node
    capped_nodes = min(nodes, limit)
    capped_per_node = min(per_node, limit // capped_nodes)
    notes.append(
        f"{use.name}: {nodes * per_node} processes ({nodes} x {per_node}) were reduced to "
        f"{capped_nodes * capped_per_node} ({capped_nodes} x {capped_per_node}) by --max-processes {limit}"
    )
    return capped_nodes, capped_per_node


def _overload(name: str, processes: int) -> list[str]:
    """What to say of more processes than this machine has processors or GPUs for."""
    notes = []
    processors = available_processors()
    if processes > _PROCESSES_PER_PROCESSOR * processors:
        on = f"{processors} processor{'s' if processors > 1 else ''}"
        notes.append(f"{name}: {processes} processes on {on}: --max-processes N runs fewer")
    gpus = len(available_gpus(os.environ))
    if processes > gpus > 0:
        has = f"this machine has {gpus} GPU{'s' if gpus > 1 else ''}"
        uses = f"--max-processes {gpus} uses {'it' if gpus == 1 else 'them'}"
        notes.append(f"{name}: {processes} processes run without GPUs, since {has}: {uses}")
    return notes
