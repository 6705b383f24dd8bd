"""From a resolved pipeline to what will run here: paths on this machine, and how many processes it can take.

All of it happens before the first process starts, so that a mistake in the last job costs no training.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trainyard.local.downloads import download, web_address
from trainyard.local.errors import RunError, UsageError, error_at
from trainyard.local.machine import available_gpus, available_processors, job_path
from trainyard.spec.diagnostic import Span
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component, Parallel, Pipeline, Resources, Spark
from trainyard.spec.resolution import DataPath, JobOutput, JobUse, Known, ProcessCounts, Resolution, Unknown, settled
from trainyard.spec.set_arguments import COMMAND_LINE

_REMOTE = re.compile(r"^(azureml:|/subscriptions/|[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_DATASTORE_PATH = re.compile(r"azureml://(?:subscriptions/.+/)?datastores/([^/]+)/paths/(.*)", re.IGNORECASE)
# More processes than this on a processor mostly wait for each other, and for memory.
_PROCESSES_PER_PROCESSOR = 4


@dataclass(frozen=True)
class LocalPath:
    """A file or folder on this machine that a job reads; as written, where, and the key that `--set` takes for it."""

    path: Path
    written: str
    span: Span
    settable: str


@dataclass(frozen=True)
class WrittenValue:
    """A literal that another job writes into this output, as text."""

    output: JobOutput
    type: str


Source = ParameterValue | LocalPath | JobOutput | WrittenValue
"""What an input is: a literal, local data, or another job's output. An optional input that is not given is absent."""


@dataclass(frozen=True)
class KeptData:
    """Where data with an address lies on this machine: what was downloaded, and a folder for each datastore."""

    downloads: Path
    datastores: Path

    def of_datastore(self, address: str) -> Path | None:
        """Return the local place of a path in a datastore, whether or not it exists; None for other addresses."""
        found = _DATASTORE_PATH.fullmatch(address)
        parts = found[2].strip("/").split("/") if found else []
        return self.datastores.joinpath(found[1], *parts) if found and ".." not in (found[1], *parts) else None


@dataclass(frozen=True)
class ResolvedJob:
    """A job with nothing left open but the paths of the run folder.

    `destinations` are the datastore paths that outputs are to be found under, with Azure ML's macros as written.
    `trial` is set for one trial of a sweep: what it runs in place of the sweep.
    """

    use: JobUse
    depends_on: tuple[str, ...]
    inputs: dict[str, Source]
    environment_variables: dict[str, str]
    distribution: str | None
    nodes: int
    processes_per_node: int
    timeout_seconds: int | None = None
    destinations: Mapping[str, str] = field(default_factory=dict)
    trial: Component | None = None
    world_size: int = 0
    parameter_servers: int = 0

    @property
    def name(self) -> str:
        """The job's name in the pipeline, dotted where it belongs to a pipeline within."""
        return self.use.name

    @property
    def component(self) -> Component:
        """What the job runs."""
        return self.trial or self.use.component

    @property
    def resources(self) -> Resources | None:
        """What the job asks for."""
        return self.use.job.effective_resources

    @property
    def processes(self) -> int:
        """Processes over all nodes; TensorFlow's need not be equally many on each."""
        return self.world_size or self.nodes * self.processes_per_node


@dataclass(frozen=True)
class ResolvedPipeline:
    """The jobs in an order in which they can run, where the pipeline's outputs come from, and what was changed."""

    pipeline: Pipeline
    inputs: dict[str, ParameterValue]
    jobs: dict[str, ResolvedJob]
    outputs: dict[str, JobOutput]
    notes: tuple[str, ...]


def resolve(
    pipeline: Pipeline,
    resolution: Resolution,
    *,
    kept: KeptData,
    selected: Collection[str],
    max_processes: int | None = None,
    python: Path = Path(sys.executable),
) -> ResolvedPipeline:
    """Return the pipeline as it runs on this machine.

    Data inputs must exist for the jobs in `selected`, or be downloaded; the others only provide their outputs. Raises
    `SpecError` at the line of whatever cannot be run here, `UsageError` where the command line gave it.
    """
    if max_processes is not None and max_processes < 1:
        raise UsageError(f"--max-processes {max_processes}: at least one process is needed")
    notes: list[str] = []
    jobs = {}
    for name in resolution.order():
        job = _job(resolution, name, max_processes, notes)
        if name in selected:
            _refuse_without_spark(job, python)
            job = replace(job, inputs={port: _found(job, port, each, kept) for port, each in job.inputs.items()})
            if max_processes is None:
                notes += _overload(name, job.processes)
        jobs[name] = job
    inputs = {name: found.value for name, found in resolution.inputs.items() if isinstance(found, Known)}
    shown = {name: value.text if isinstance(value, DataPath) else value for name, value in inputs.items()}
    literals = {name: value for name, value in shown.items() if isinstance(value, (str, int, float))}
    return ResolvedPipeline(pipeline, literals, jobs, resolution.outputs, tuple(notes))


def _job(resolution: Resolution, name: str, max_processes: int | None, notes: list[str]) -> ResolvedJob:
    use = resolution.jobs[name]
    _refuse(use)
    inputs: dict[str, Source] = {}
    for port, resolved in use.inputs.items():
        if isinstance(resolved, Unknown) and resolved.output is not None:
            inputs[port] = WrittenValue(resolved.output, use.component.inputs[port].type)
            continue
        value = settled(resolved)
        if isinstance(value, DataPath):
            assert isinstance(resolved, Known)
            inputs[port] = _local_path(value, resolved)
        elif isinstance(value, (str, int, float, JobOutput)):
            inputs[port] = value
    distribution = use.job.effective_distribution
    counts = _capped(use, max_processes, notes)
    variables = {name: str(settled(resolved)) for name, resolved in use.environment_variables.items()}
    depends_on = tuple(sorted(resolution.waits_for[name]))
    timeout = settled(use.timeout_seconds) if use.timeout_seconds is not None else None
    assert timeout is None or isinstance(timeout, int)
    return ResolvedJob(
        use,
        depends_on,
        inputs,
        variables,
        distribution.type if distribution is not None else None,
        counts.nodes,
        counts.processes_per_node,
        timeout,
        dict(_destinations(resolution, use)),
        world_size=counts.world_size,
        parameter_servers=counts.parameter_servers,
    )


def _refuse(use: JobUse) -> None:
    distribution = use.job.effective_distribution
    if distribution is not None and distribution.type == "ray":
        raise error_at(
            distribution.span,
            f"job {use.name!r}: distribution 'ray' is not run locally yet",
            "use another or none; on Azure ML the job runs as it is",
        )


def _refuse_without_spark(job: ResolvedJob, python: Path) -> None:
    path = job_path(python, os.environ.get("PATH"))
    if isinstance(job.component.task, Spark) and shutil.which("spark-submit", path=path) is None:
        raise error_at(
            job.use.job.key_span,
            f"job {job.name!r}: a Spark job needs spark-submit, which {python} does not have",
            "install pyspark for it, and Java, or name another with --python PATH",
        )


def _destinations(resolution: Resolution, use: JobUse) -> Iterator[tuple[str, str]]:
    """The datastore paths that a job's outputs are written to, its own or those of the pipeline's outputs."""
    of_outputs = {output: resolution.pipeline.outputs[name] for name, output in resolution.outputs.items()}
    for port in use.component.outputs:
        value = use.job.outputs.get(port)
        of_pipeline = of_outputs.get(JobOutput(use.name, port))
        text = value.data.get("path") if value is not None and isinstance(value.data, dict) else None
        if of_pipeline is not None and of_pipeline.path is not None:
            text = of_pipeline.path.data
        if isinstance(text, str) and text.startswith("azureml://"):
            yield port, text


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


def _found(job: ResolvedJob, name: str, source: Source, kept: KeptData) -> Source:
    """The source of an input, with data on this machine; raise for data that is not."""
    if not isinstance(source, LocalPath):
        return source
    port_type = job.component.inputs[name].type
    expected, exists = _KINDS.get(port_type, ("file or folder", Path.exists))
    set_it = f"--set {source.settable}.path=./data"
    if _REMOTE.match(source.written):
        path, why = _local_copy(source.written, port_type, kept)
        if path is None or not exists(path):
            message = f"job {job.name!r}: input {name!r} is {source.written}, which {why}"
            raise error_at(source.span, message, f"give local data in its place: {set_it}")
        return replace(source, path=path)
    if not exists(source.path):
        is_other = f"{source.path} is a {'folder' if source.path.is_dir() else 'file'}; the input takes a {expected}"
        raise error_at(
            source.span,
            f"job {job.name!r}: input {name!r}: "
            + (is_other if source.path.exists() else f"there is no {expected} {source.path}"),
            f"correct the path, or give other data in its place: {set_it}",
        )
    return source


def _local_copy(written: str, port_type: str, kept: KeptData) -> tuple[Path | None, str]:
    """Where data with an address lies on this machine, and what to say if it does not."""
    of_datastore = kept.of_datastore(written)
    if of_datastore is not None:
        return of_datastore, f"is in a datastore of Azure ML, and not in {of_datastore}"
    address = web_address(written)
    if address is None:
        return None, "only Azure ML can read"
    if port_type == "uri_folder":
        return None, "is a folder, and folders have no listing over HTTP"
    try:
        return download(address, kept.downloads), ""
    except RunError as error:
        return None, str(error).removeprefix(f"{address}: ")


def _capped(use: JobUse, limit: int | None, notes: list[str]) -> ProcessCounts:
    """The processes of a job, at most `limit` in all; those of parallel and Spark jobs are started by one process."""
    if isinstance(use.component.task, (Parallel, Spark)):
        return ProcessCounts(1, 1, 1)
    counts = use.processes()
    nodes, per_node = counts.nodes, counts.processes_per_node
    if limit is None or counts.world_size <= limit:
        return counts
    capped_nodes = min(nodes, limit)
    capped_per_node = min(per_node, limit // capped_nodes)
    notes.append(
        f"{use.name}: {nodes * per_node} processes ({nodes} x {per_node}) were reduced to "
        f"{capped_nodes * capped_per_node} ({capped_nodes} x {capped_per_node}) by --max-processes {limit}"
    )
    left = capped_nodes * capped_per_node
    return ProcessCounts(capped_nodes, capped_per_node, left, min(counts.parameter_servers, left - 1))


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
