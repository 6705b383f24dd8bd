"""From a pipeline to what will really be run: every binding followed, every value checked, every process counted.

All of it happens before the first process starts, so that a mistake in the last job costs no training.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from trainyard.local.errors import UsageError
from trainyard.local.gpus import available_gpus
from trainyard.local.located import mistake, parsed
from trainyard.local.overrides import COMMAND_LINE
from trainyard.local.processors import available_processors
from trainyard.local.values import ParameterValue, as_text, checked_value, written
from trainyard.spec.diagnostic import Span
from trainyard.spec.expressions import Binding, Literal, Segment, only_binding
from trainyard.spec.graph import dependencies, topological_order
from trainyard.spec.model import Job, Pipeline, Port, Value

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


@dataclass(frozen=True)
class JobOutput:
    """What another job of the same pipeline writes."""

    job: str
    port: str


Source = ParameterValue | LocalPath | JobOutput
"""What an input is: a literal, local data, or another job's output. An optional input that is not given is absent."""


@dataclass(frozen=True)
class ResolvedJob:
    """A job with nothing left open but the paths of the run folder."""

    job: Job
    depends_on: tuple[str, ...]
    inputs: dict[str, Source]
    environment_variables: dict[str, str]
    distribution: str | None
    nodes: int
    processes_per_node: int

    @property
    def name(self) -> str:
        """The job's name in the pipeline."""
        return self.job.name

    @property
    def processes(self) -> int:
        """Processes over all nodes."""
        return self.nodes * self.processes_per_node


@dataclass(frozen=True)
class ResolvedPipeline:
    """The jobs in an order in which they can run, where the pipeline's outputs come from, and what was changed."""

    pipeline: Pipeline
    inputs: dict[str, ParameterValue | str]
    jobs: dict[str, ResolvedJob]
    outputs: dict[str, JobOutput]
    notes: tuple[str, ...]


def resolve(pipeline: Pipeline, *, selected: Collection[str], max_processes: int | None = None) -> ResolvedPipeline:
    """Follow every binding of the pipeline and check every value against its declared type.

    Data inputs must exist for the jobs in `selected`; the others only lend their outputs. Raises `SpecError` at the
    line of whatever cannot be run here, `UsageError` where the command line gave it.
    """
    if max_processes is not None and max_processes < 1:
        raise UsageError(f"--max-processes {max_processes}: at least one process is needed")
    upstream = dependencies(pipeline)
    resolver = _Resolver(pipeline, max_processes)
    jobs = {}
    for name in topological_order(pipeline):
        jobs[name] = resolver.job(pipeline.jobs[name], tuple(sorted(upstream[name])), check_data=name in selected)
    return ResolvedPipeline(
        pipeline, resolver.pipeline_inputs(), jobs, _pipeline_outputs(pipeline), tuple(resolver.notes)
    )


# What a port's data must be on disk; any other kind may be either.
_KINDS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    "uri_file": ("file", Path.is_file),
    "uri_folder": ("folder", Path.is_dir),
}
_NO_INPUTS: Mapping[str, Source] = MappingProxyType({})


class _Resolver:
    def __init__(self, pipeline: Pipeline, max_processes: int | None) -> None:
        self.pipeline = pipeline
        self.max_processes = max_processes
        self.notes: list[str] = []

    def pipeline_inputs(self) -> dict[str, ParameterValue | str]:
        """The pipeline's own inputs as the record shows them."""
        shown: dict[str, ParameterValue | str] = {}
        for name, port in self.pipeline.inputs.items():
            value = port.default if port.is_parameter else port.path
            if value is not None:
                shown[name] = value.data
        return shown

    def job(self, job: Job, depends_on: tuple[str, ...], *, check_data: bool) -> ResolvedJob:
        inputs = {}
        for name, port in job.component.inputs.items():
            source = self.input(job, name)
            if source is None and not port.optional:
                raise mistake(job.key_span, f"job {job.name!r}: input {name!r} is not given and has no default")
            if isinstance(source, LocalPath) and check_data:
                self._must_be_here(job, name, source)
            if source is not None:
                inputs[name] = source
        distribution = self._distribution(job)
        nodes, processes_per_node = self._counts(job, inputs)
        if check_data and self.max_processes is None:
            self._note_overload(job, nodes * processes_per_node)
        variables = {
            name: self._filled(value.data, value.span) if isinstance(value.data, str) else as_text(value.data)
            for name, value in job.environment_variables.items()
        }
        return ResolvedJob(job, depends_on, inputs, variables, distribution, nodes, processes_per_node)

    def input(self, job: Job, name: str) -> Source | None:
        """What one input of a job is bound to, or None when it is not given."""
        port = job.component.inputs[name]
        value = job.inputs.get(name, port.default)
        if value is None or value.data is None:
            return None
        what, settable = f"job {job.name!r}: input {name!r}", f"jobs.{job.name}.inputs.{name}"
        data = written(value)
        if isinstance(data, str):
            if (binding := only_binding(data)) is not None:
                return self._typed(port, self._follow(binding, value.span), value, what)
            if "${{" in data:
                data = self._filled(data, value.span)
        return self._typed(port, _as_source(port, data, value.span, settable), value, what)

    def _follow(self, binding: Binding, span: Span) -> Source | None:
        path = binding.path
        if path[:2] == ("parent", "inputs"):
            return self._pipeline_input(".".join(path[2:]), binding.text, span)
        if path[:2] == ("parent", "jobs") and len(path) > 4 and path[2] in self.pipeline.jobs:
            other, port = self.pipeline.jobs[path[2]], ".".join(path[4:])
            if path[3] == "outputs" and port in other.component.outputs:
                return JobOutput(other.name, port)
            if path[3] == "inputs" and port in other.component.inputs:
                return self.input(other, port)
        raise mistake(span, f"{binding.text} is bound to nothing in this pipeline")

    def _pipeline_input(self, name: str, text: str, span: Span) -> Source | None:
        if name not in self.pipeline.inputs:
            raise mistake(span, f"{text}: the pipeline has no input {name!r}")
        port = self.pipeline.inputs[name]
        value = port.default if port.is_parameter else port.path
        if value is None:
            if port.optional:
                return None
            raise mistake(
                port.key_span,
                f"input {name!r} of the pipeline has no value",
                f"give one with --set inputs.{name}=VALUE",
            )
        return self._typed(port, _as_source(port, value.data, value.span, f"inputs.{name}"), value, f"input {name!r}")

    def _typed(self, port: Port, source: Source | None, value: Value, what: str) -> Source | None:
        if source is None or isinstance(source, (LocalPath, JobOutput)):
            if source is not None and port.is_parameter:
                raise mistake(value.span, f"{what} is {_with_article(port.type)} and cannot be bound to files")
            return source
        if not port.is_parameter:
            raise mistake(value.span, f"{what} is {_with_article(port.type)} and cannot be the value {source!r}")
        try:
            return checked_value(port, source)
        except ValueError as error:
            raise mistake(value.span, f"{what}: {error} (type: {port.type})") from error

    def _must_be_here(self, job: Job, name: str, source: LocalPath) -> None:
        if _REMOTE.match(source.written):
            raise mistake(
                source.span,
                f"job {job.name!r}: input {name!r} is remote data ({source.written}), which a local run does not fetch",
                f"give a local copy with --set {source.settable}=PATH",
            )
        wanted, exists = _KINDS.get(job.component.inputs[name].type, ("file or folder", Path.exists))
        if not exists(source.path):
            raise mistake(
                source.span,
                f"job {job.name!r}: input {name!r}: {source.path} is no {wanted} on this machine",
                f"correct the path, or give another with --set {source.settable}=PATH",
            )

    def _distribution(self, job: Job) -> str | None:
        distribution = job.effective_distribution
        if distribution is None or distribution.type == "pytorch":
            return None if distribution is None else "pytorch"
        raise mistake(
            distribution.span,
            f"job {job.name!r}: distribution {distribution.type!r} is not run locally yet",
            "pytorch and none are; on Azure ML the job runs as it stands",
        )

    def _counts(self, job: Job, inputs: dict[str, Source]) -> tuple[int, int]:
        resources, distribution = job.effective_resources, job.effective_distribution
        nodes = self._count(job, "instance_count", resources.instance_count if resources else None, inputs)
        wanted = distribution.process_count_per_instance if distribution else None
        per_node = self._count(job, "process_count_per_instance", wanted, inputs)
        limit = self.max_processes
        if limit is None or nodes * per_node <= limit:
            return nodes, per_node
        capped_nodes = min(nodes, limit)
        capped_per_node = min(per_node, limit // capped_nodes) if distribution else 1
        self.notes.append(
            f"{job.name}: {nodes * per_node} processes ({nodes} x {per_node}) were reduced to "
            f"{capped_nodes * capped_per_node} ({capped_nodes} x {capped_per_node}) by --max-processes {limit}"
        )
        return capped_nodes, capped_per_node

    def _note_overload(self, job: Job, processes: int) -> None:
        processors = available_processors()
        if processes > _PROCESSES_PER_PROCESSOR * processors:
            on = f"{processors} processor{'s' if processors > 1 else ''}"
            self.notes.append(f"{job.name}: {processes} processes on {on}: --max-processes N runs fewer")
        gpus = len(available_gpus(os.environ))
        if processes > gpus > 0:
            has = f"this machine has {gpus} GPU{'s' if gpus > 1 else ''}"
            self.notes.append(
                f"{job.name}: {processes} processes run without GPUs, since {has}: --max-processes {gpus} uses "
                + ("it" if gpus == 1 else "them")
            )

    def _count(self, job: Job, what: str, value: Value | None, inputs: dict[str, Source]) -> int:
        if value is None:
            return 1
        data = value.data
        if isinstance(data, str):
            data = self._filled(data, value.span, inputs)
        try:
            count = int(data)
        except (TypeError, ValueError):
            raise mistake(value.span, f"job {job.name!r}: {what} is {data!r}, and must be a whole number") from None
        if count < 1:
            raise mistake(value.span, f"job {job.name!r}: {what} is {count}, and must be at least 1")
        return count

    def _filled(self, text: str, span: Span, own_inputs: Mapping[str, Source] = _NO_INPUTS) -> str:
        """A text in which `${{parent.inputs.x}}`, and `${{inputs.x}}` of `own_inputs`, stand for literals."""
        return "".join(self._segment_text(segment, span, own_inputs) for segment in parsed(text, span))

    def _segment_text(self, segment: Segment, span: Span, own_inputs: Mapping[str, Source]) -> str:
        if isinstance(segment, Literal):
            return segment.text
        if not isinstance(segment, Binding):
            raise mistake(span, "$[[ … ]] stands in commands only")
        own_name = ".".join(segment.path[1:]) if segment.path[0] == "inputs" else ""
        source = own_inputs[own_name] if own_name in own_inputs else self._follow(segment, span)
        if source is None or isinstance(source, (LocalPath, JobOutput)):
            raise mistake(span, f"{segment.text} is not a literal, and cannot stand within a text")
        return as_text(source)


def _as_source(port: Port, data: object, span: Span, settable: str) -> Source:
    if port.is_parameter:
        if isinstance(data, (str, int, float, bool)):
            return data
        raise mistake(span, f"input {port.name!r}: {data!r} is not {_with_article(port.type)}")
    if not isinstance(data, str):
        raise mistake(span, f"input {port.name!r}: {data!r} is not a path")
    text = data.removeprefix("file://").removeprefix("file:")
    folder = Path.cwd() if span.file == COMMAND_LINE else span.file.resolve().parent
    return LocalPath((folder / Path(text).expanduser()).resolve(), text, span, settable)


def _with_article(port_type: str) -> str:
    return f"{'an' if port_type == 'integer' else 'a'} {port_type}"


def _pipeline_outputs(pipeline: Pipeline) -> dict[str, JobOutput]:
    bound = {}
    for job in pipeline.jobs.values():
        for port, value in job.outputs.items():
            text = value.data.get("path") if isinstance(value.data, dict) else value.data
            if not isinstance(text, str):
                continue
            binding = only_binding(text)
            if binding is not None and binding.path[:2] == ("parent", "outputs"):
                bound[".".join(binding.path[2:])] = JobOutput(job.name, port)
    return {name: bound[name] for name in pipeline.outputs if name in bound}
