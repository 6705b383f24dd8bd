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

from trainyard.rehearse.downloads import download, web_address
from trainyard.rehearse.errors import RunError, UsageError, error_at
from trainyard.rehearse.machine import Machine, job_path
from trainyard.settings.quantities import counted
from trainyard.spec.diagnostic import Span
from trainyard.spec.distributions import ProcessCounts
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component, Parallel, Pipeline, Resources, Spark
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import DataPath, JobOutput, Known, Resolved, Unknown, settled
from trainyard.spec.set_arguments import COMMAND_LINE

_REMOTE = re.compile(r"^(azureml:|/subscriptions/|[a-z][a-z0-9+.-]*://)", re.IGNORECASE)
_DATASTORE_PATH = re.compile(r"azureml://(?:subscriptions/.+/)?datastores/([^/]+)/paths/(.*)", re.IGNORECASE)
# A NUL ends a text for the system; a lone surrogate stands for a byte of the command line that is not UTF-8.
_UNPASSABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True)
class LocalPath:
    """A file or folder on this machine that a job reads; as written, where, and the key that `--set` takes for it.

    `type` is what the input declares the data to be, where it does; a component's port may say otherwise.
    """

    path: Path
    written: str
    span: Span
    settable: str
    type: str = ""


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

    Those in `starts_after` only have to end before it starts, whatever becomes of them.
    `destinations` are the datastore paths that outputs are to be found under, with Azure ML's macros as written.
    `trial` is set for one trial of a sweep: what it runs in place of the sweep. `read_outputs` are read by other jobs.
    `scaling` says which processes do not run here, if some do not.
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
    starts_after: frozenset[str] = frozenset()
    trial: Component | None = None
    read_outputs: frozenset[str] = frozenset()
    world_size: int = 0
    parameter_servers: int = 0
    scaling: str | None = None

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
    in_containers: bool = False,
) -> ResolvedPipeline:
    """Return the pipeline as it runs on this machine, each job with at most `max_processes`; None is for its default.

    Data inputs must exist for the jobs in `selected`, or be downloaded; the others only provide their outputs. Programs
    that jobs need are not looked for beside `python` if they run `in_containers`. Raises
    `SpecError` at the line of whatever cannot be run here, `UsageError` where the command line gave it.
    """
    if max_processes is not None and max_processes < 1:
        raise UsageError(f"--max-processes {max_processes}: at least one process is needed")
    notes: list[str] = []
    jobs = {}
    machine = Machine.here()
    for name in resolution.order():
        job = _job(resolution, name, max_processes, machine)
        notes += [f"{name}: {job.scaling}"] if job.scaling is not None else []
        if name in selected:
            _refuse_without_programs(job, python, in_containers=in_containers)
            job = replace(job, inputs={port: _found(job, port, each, kept) for port, each in job.inputs.items()})
            if max_processes is None:
                notes += _too_few_gpus(name, job.processes, machine)
        jobs[name] = job
    read: dict[str, set[str]] = {}
    for output in (_output(source) for job in jobs.values() for source in job.inputs.values()):
        if output is not None:
            read.setdefault(output.job, set()).add(output.port)
    jobs = {name: replace(job, read_outputs=frozenset(read.get(name, ()))) for name, job in jobs.items()}
    inputs = {name: found.value for name, found in resolution.inputs.items() if isinstance(found, Known)}
    shown = {name: value.text if isinstance(value, DataPath) else value for name, value in inputs.items()}
    literals = {name: value for name, value in shown.items() if isinstance(value, (str, int, float))}
    return ResolvedPipeline(pipeline, literals, jobs, resolution.outputs, tuple(notes))


def _output(source: Source) -> JobOutput | None:
    """The output of another job that an input reads."""
    if isinstance(source, WrittenValue):
        return source.output
    return source if isinstance(source, JobOutput) else None


def _job(resolution: Resolution, name: str, max_processes: int | None, machine: Machine) -> ResolvedJob:
    use = resolution.jobs[name]
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
            _refuse_what_no_process_takes(value, resolved, f"job {name!r}: input {port!r}")
            inputs[port] = value
    for variable, resolved in use.environment_variables.items():
        _refuse_what_no_process_takes(settled(resolved), resolved, f"job {name!r}: environment variable {variable!r}")
    distribution = use.job.effective_distribution
    counts, scaling = _capped(use, max_processes, machine)
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
        resolution.starts_after[name],
        world_size=counts.world_size,
        parameter_servers=counts.parameter_servers,
        scaling=scaling,
    )


def _refuse_what_no_process_takes(value: object, resolved: Resolved, what: str) -> None:
    """Refuse a text that no command line or environment can hold: one with a NUL, or with bytes that are not UTF-8."""
    if isinstance(value, str) and isinstance(resolved, Known) and _UNPASSABLE.search(value):
        raise error_at(
            resolved.written.span,
            f"{what} has a character that no process can be given: {value!a}",
            "give a text without it",
        )


def _refuse_without_programs(job: ResolvedJob, python: Path, *, in_containers: bool) -> None:
    path = job_path(python, os.environ.get("PATH"))
    distribution = job.use.job.effective_distribution
    needs_ray = distribution is not None and distribution.type == "ray" and not in_containers
    if distribution is not None and needs_ray and shutil.which("ray", path=path) is None:
        raise error_at(
            distribution.span,
            f"job {job.name!r}: distribution 'ray' needs ray, which {python} does not have",
            "install ray for it, or name another with --python PATH",
        )
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
        span = value.span if value is not None else use.job.key_span
        if of_pipeline is not None and of_pipeline.path is not None:
            text, span = of_pipeline.path.data, of_pipeline.path.span
        if isinstance(text, str) and ".." in text.split("/"):
            raise error_at(
                span,
                f"job {use.name!r}: the path of output {port!r} goes upwards with '..': {text}",
                "write the path from the datastore's root",
            )
        if isinstance(text, str) and text.startswith("azureml://"):
            yield port, text


def _local_path(data: DataPath, resolved: Known) -> LocalPath:
    text = data.text.removeprefix("file://").removeprefix("file:")
    span = resolved.written.span
    folder = Path.cwd() if span.file == COMMAND_LINE else span.file.resolve().parent
    return LocalPath((folder / Path(text).expanduser()).resolve(), text, span, resolved.key, data.type)


# What a port's data must be on disk; any other kind may be either.
_Kind = tuple[str, Callable[[Path], bool]]
_KINDS: dict[str, _Kind] = {
    "uri_file": ("file", Path.is_file),
    "uri_folder": ("folder", Path.is_dir),
}
_ANY_KIND: _Kind = ("file or folder", Path.exists)


def _is_of(path: Path, *types: str) -> bool:
    """Whether data of one of these types lies at a path: Azure ML goes by what the input says, not by the port."""
    return any(_KINDS.get(each, _ANY_KIND)[1](path) for each in types)


def _found(job: ResolvedJob, name: str, source: Source, kept: KeptData) -> Source:
    """The source of an input, with data on this machine; raise for data that is not."""
    if not isinstance(source, LocalPath):
        return source
    port_type = job.component.inputs[name].type
    given_type = source.type or port_type
    expected, _ = _KINDS.get(given_type, _ANY_KIND)
    set_it = f"--set {source.settable}.path=./data"
    if _REMOTE.match(source.written):
        path, why = _local_copy(source.written, given_type, kept)
        if path is None or not _is_of(path, given_type, port_type):
            message = f"job {job.name!r}: input {name!r} is {source.written}, which {why}"
            raise error_at(source.span, message, f"give local data in its place: {set_it}")
        return replace(source, path=path)
    if foreign := _foreign_path(source.path):
        message = f"job {job.name!r}: input {name!r} is {source.written}, whose MLTable names {foreign}"
        raise error_at(
            source.span, f"{message}, which only Azure ML can read", f"give local data in its place: {set_it}"
        )
    if not _is_of(source.path, given_type, port_type):
        is_other = f"{source.path} is a {'folder' if source.path.is_dir() else 'file'}; the input takes a {expected}"
        raise error_at(
            source.span,
            f"job {job.name!r}: input {name!r}: "
            + (is_other if source.path.exists() else f"there is no {expected} {source.path}"),
            f"correct the path, or give other data in its place: {set_it}",
        )
    return source


def _foreign_path(folder: Path) -> str | None:
    """The first path of a folder's MLTable that only Azure ML can read; a broken one is for the job to report."""
    if not (folder / "MLTable").is_file():
        return None
    from trainyard.rehearse.mltables import read_mltable  # PyYAML is for runs with tables

    try:
        table = read_mltable(folder)
    except RunError:
        return None
    paths = (path for each in table["paths"] for path in each.values()) if table is not None else ()
    return next((path for path in paths if _REMOTE.match(path) and web_address(path) is None), None)


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


def _capped(use: JobUse, max_processes: int | None, machine: Machine) -> tuple[ProcessCounts, str | None]:
    """The processes of a job, at most so many in all, and what was left out, if anything was.

    Nodes and processes per node are divided by whole numbers, so that a batch that is shared evenly by all is shared
    evenly by those left. Without a number given, parameter servers come on top, since they mostly wait. Parallel and
    Spark jobs are started by one process.
    """
    if isinstance(use.component.task, (Parallel, Spark)):
        return ProcessCounts(1, 1, 1), None
    counts = use.processes()
    limit = machine.process_limit + counts.parameter_servers if max_processes is None else max_processes
    if counts.world_size <= limit:
        return counts, None
    nodes = _largest_divisor(counts.nodes, limit)
    per_node = _largest_divisor(counts.processes_per_node, limit // nodes)
    capped = ProcessCounts(nodes, per_node, nodes * per_node, min(counts.parameter_servers, nodes * per_node - 1))
    shapes = [f"{each.nodes} x {each.processes_per_node}" for each in (counts, capped)]
    reduced = f"{counts.world_size} processes ({shapes[0]}) were reduced to {capped.world_size} ({shapes[1]})"
    if max_processes is not None:
        return capped, f"{reduced} by --max-processes {max_processes}"
    has = counted(machine.processors, "processor")
    return capped, f"{reduced}, since this machine has {has}: --max-processes {counts.world_size} runs all"


def _largest_divisor(count: int, limit: int) -> int:
    return next(divisor for divisor in range(min(count, limit), 0, -1) if count % divisor == 0)


def _too_few_gpus(name: str, processes: int, machine: Machine) -> list[str]:
    """What to say of more processes than this machine has GPUs for."""
    if not processes > machine.gpus > 0:
        return []
    has = f"this machine has {counted(machine.gpus, 'GPU')}"
    uses = f"--max-processes {machine.gpus} uses {'it' if machine.gpus == 1 else 'them'}"
    return [f"{name}: {processes} processes run without GPUs, since {has}: {uses}"]
