"""The jobs of a pipeline as they run here: their data on this machine, and as many processes as it can take.

All of it is known before the first process starts, so that a mistake in the last job costs no training.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from trainyard.rehearse.errors import UsageError, error_at
from trainyard.rehearse.local_data import KeptData, LocalPath, local_path, on_this_machine
from trainyard.rehearse.snapshots import Snapshot, snapshot_of
from trainyard.settings.quantities import counted
from trainyard.settings.this_machine import available_processors
from trainyard.spec.distributions import TensorFlow
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Component, Distribution, Parallel, Pipeline, ProcessCounts, Resources, Spark
from trainyard.spec.resolution import JobUse, Resolution
from trainyard.spec.resolved import DataPath, JobOutput, Known, Resolved, Unknown, settled

# A NUL ends a string for the system; a lone surrogate stands for a byte of the command line that is not UTF-8.
_UNPASSABLE = re.compile("[\x00\ud800-\udfff]")
# Two nodes with two processes each: the smallest job whose node ranks, local ranks and ranks all differ. It is
# rehearsed as it is on any machine.
_SMALLEST_LIMIT = 4


class WrittenValue(NamedTuple):
    """A literal that another job writes into this output, as text."""

    output: JobOutput
    type: str


Source = ParameterValue | LocalPath | JobOutput | WrittenValue
"""What an input is: a literal, local data, or another job's output. An optional input that is not given is absent."""


@dataclass(frozen=True)
class LocalJob:
    """A job with nothing left open but the paths of the run folder.

    Those in `starts_after` only have to end before it starts, whatever becomes of them.
    `destinations` are the datastore paths that outputs are to be found under, with Azure ML's macros as written.
    `trial` is set for one trial of a sweep: what it runs in place of the sweep. `read_outputs` are read by other jobs.
    `scaling` says which processes do not run here, if some do not.
    """

    use: JobUse
    depends_on: tuple[str, ...]
    starts_after: frozenset[str]
    inputs: dict[str, Source]
    environment_variables: dict[str, str]
    counts: ProcessCounts
    scaling: str | None
    timeout_seconds: int | None
    destinations: Mapping[str, str]
    read_outputs: frozenset[str] = frozenset()
    trial: Component | None = None

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
    def distribution(self) -> Distribution | None:
        """What starts its processes on its nodes, and how they find each other."""
        return self.use.job.effective_distribution

    @property
    def distribution_type(self) -> str | None:
        """The distribution as records name it."""
        return self.distribution.type if self.distribution is not None else None

    @property
    def processes(self) -> int:
        """Processes over all nodes; TensorFlow's need not be equally many on each."""
        return self.counts.world_size

    @cached_property
    def snapshot(self) -> Snapshot:
        """Its code. Raise `SpecError` when a part of it is missing."""
        return snapshot_of(self.component)

    def has_in_its_code(self, path: Path) -> bool:
        """Return whether a file or folder is beneath those that its snapshot is made of."""
        folders = [self.component.code, *self.component.additional_includes]
        return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders if folder is not None)


class LocalPipeline(NamedTuple):
    """The jobs in an order in which they can run, where the pipeline's outputs come from, and what was changed."""

    pipeline: Pipeline
    inputs: dict[str, ParameterValue]
    jobs: dict[str, LocalJob]
    outputs: dict[str, JobOutput]
    notes: tuple[str, ...]


def local_pipeline(
    pipeline: Pipeline,
    resolution: Resolution,
    *,
    kept: KeptData,
    selected: Collection[str],
    max_processes: int | None = None,
    gpus: int = 0,
) -> LocalPipeline:
    """Return the pipeline as it runs on this machine, each job with at most `max_processes`; None is for its default.

    Data inputs must exist for the jobs in `selected`, or be downloaded; the others only provide their outputs. Raises
    `SpecError` at the line of whatever cannot be run here, `UsageError` where the command line gave it.
    """
    if max_processes is not None and max_processes < 1:
        raise UsageError(f"--max-processes {max_processes}: at least one process is needed")
    cap = ProcessCap(available_processors(), gpus, max_processes)
    notes: list[str] = []
    jobs: dict[str, LocalJob] = {}
    read: dict[str, set[str]] = {}
    for name in resolution.order():
        job = _local_job(resolution, name, cap)
        if job.scaling is not None:
            notes.append(f"{name}: {job.scaling}")
        if name in selected:
            for port, source in job.inputs.items():
                if isinstance(source, LocalPath):
                    named = f"job {name!r}: input {port!r}"
                    job.inputs[port] = on_this_machine(source, job.component.inputs[port].type, named, kept)
            without_gpus = cap.too_few_gpus(job.processes)
            notes += [f"{name}: {without_gpus}"] if without_gpus is not None else []
            notes += [f"{name}: {port!r} takes a folder, and gets a file" for port in _files_for_folders(job, jobs)]
        for source in job.inputs.values():
            output = source.output if isinstance(source, WrittenValue) else source
            if isinstance(output, JobOutput):
                read.setdefault(output.job, set()).add(output.port)
        jobs[name] = job
    jobs = {name: replace(job, read_outputs=frozenset(read.get(name, ()))) for name, job in jobs.items()}
    return LocalPipeline(pipeline, _literal_inputs(resolution), jobs, resolution.outputs, tuple(notes))


def _files_for_folders(job: LocalJob, earlier: Mapping[str, LocalJob]) -> Iterator[str]:
    """The job's inputs of type uri_folder whose data is a file: Azure ML does not compare the two types."""
    for port, source in job.inputs.items():
        is_local_file = isinstance(source, LocalPath) and source.path.is_file()
        is_written_file = (
            isinstance(source, JobOutput) and earlier[source.job].component.outputs[source.port].type == "uri_file"
        )
        if job.component.inputs[port].type == "uri_folder" and (is_local_file or is_written_file):
            yield port


def _literal_inputs(resolution: Resolution) -> dict[str, ParameterValue]:
    """The pipeline's own inputs that are known, data as its path."""
    literals: dict[str, ParameterValue] = {}
    for name, resolved in resolution.inputs.items():
        value = resolved.value if isinstance(resolved, Known) else None
        if isinstance(value, DataPath):
            literals[name] = value.text
        elif isinstance(value, (str, int, float)):
            literals[name] = value
    return literals


def _local_job(resolution: Resolution, name: str, cap: ProcessCap) -> LocalJob:
    use = resolution.jobs[name]
    inputs: dict[str, Source] = {}
    for port, resolved in use.inputs.items():
        if isinstance(resolved, Unknown) and resolved.output is not None:
            inputs[port] = WrittenValue(resolved.output, use.component.inputs[port].type)
            continue
        value = settled(resolved)
        if isinstance(value, DataPath):
            assert isinstance(resolved, Known)
            inputs[port] = local_path(value, resolved)
        elif isinstance(value, (str, int, float, JobOutput)):
            _refuse_what_no_process_takes(value, resolved, f"job {name!r}: input {port!r}")
            inputs[port] = value
    for variable, resolved in use.environment_variables.items():
        _refuse_what_no_process_takes(settled(resolved), resolved, f"job {name!r}: environment variable {variable!r}")
    counts, scaling = cap.counts_of(use)
    timeout = settled(use.timeout_seconds) if use.timeout_seconds is not None else None
    assert timeout is None or isinstance(timeout, int)
    return LocalJob(
        use=use,
        depends_on=tuple(sorted(resolution.waits_for[name])),
        starts_after=resolution.starts_after[name],
        inputs=inputs,
        environment_variables={name: str(settled(value)) for name, value in use.environment_variables.items()},
        counts=counts,
        scaling=scaling,
        timeout_seconds=timeout,
        destinations=dict(_destinations(resolution, use)),
    )


def _refuse_what_no_process_takes(value: object, resolved: Resolved, what: str) -> None:
    """Refuse a string that no command line or environment can hold: with a NUL, or with bytes that are not UTF-8."""
    if isinstance(value, str) and isinstance(resolved, Known) and _UNPASSABLE.search(value):
        raise error_at(
            resolved.written.span,
            f"{what} has a character that no process can be given: {value!a}",
            "give a string without it",
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


class ProcessCap(NamedTuple):
    """The cap on the processes of a job: `max_processes` if the user gives it, else what this machine has."""

    processors: int
    gpus: int
    max_processes: int | None

    def counts_of(self, use: JobUse) -> tuple[ProcessCounts, str | None]:
        """Return the processes of a job that run here, and what was left out, if anything was.

        A job of several nodes keeps two, and one of several processes as well, so that what goes wrong between them
        does so here. Without a number given, parameter servers come on top, since they mostly wait. Parallel and Spark
        jobs are started by one process.
        """
        if isinstance(use.component.task, (Parallel, Spark)):
            return ProcessCounts(1, 1, 1), None
        counts = use.processes()
        limit = self.max_processes
        if limit is None:
            limit = max(self.processors, self.gpus, _SMALLEST_LIMIT) + counts.parameter_servers
        if counts.world_size <= limit:
            return counts, None
        distribution = use.job.effective_distribution
        if isinstance(distribution, TensorFlow):
            capped = _fewer_tasks(distribution, counts, limit)
        else:
            nodes, per_node = _fewer(counts.nodes, counts.processes_per_node, limit)
            capped = ProcessCounts(nodes, per_node, nodes * per_node)
        reduced = f"{_described(counts)} were reduced to {_described(capped, '')}"
        if self.max_processes is not None:
            lost = ", which leaves out what happens between nodes" if capped.nodes < min(2, counts.nodes) else ""
            return capped, f"{reduced} by --max-processes {self.max_processes}{lost}"
        has = counted(self.processors, "processor")
        return capped, f"{reduced}, since this machine has {has}: --max-processes {counts.world_size} runs all"

    def too_few_gpus(self, processes: int) -> str | None:
        """Return what to say of more processes than this machine has GPUs for; None if it has enough, or none."""
        if self.max_processes is not None or self.gpus == 0 or processes <= self.gpus:
            return None
        has = f"this machine has {counted(self.gpus, 'GPU')}"
        uses = f"--max-processes {self.gpus} uses {'it' if self.gpus == 1 else 'them'}"
        return f"{processes} processes run without GPUs, since {has}: {uses}"


def _described(counts: ProcessCounts, unit: str = " processes") -> str:
    shape = f"{counts.nodes} x {counts.processes_per_node}"
    if counts.parameter_servers:
        workers, servers = counts.training_processes, counts.parameter_servers
        shape = f"{counted(workers, 'worker')} and {counted(servers, 'parameter server')}"
    return f"{counts.world_size}{unit} ({shape})"


def _fewer(nodes: int, per_node: int, limit: int) -> tuple[int, int]:
    """Return at most `limit` processes in the manner of more: nodes, and processes on each.

    Two nodes are kept before anything else, then two processes. Divisors come next, so that a batch that is shared
    evenly by all is shared evenly by those left; then two processes on a node, whose local ranks differ; then size.
    """

    def worth(shape: tuple[int, int]) -> tuple[object, ...]:
        some_nodes, some_per_node = shape
        is_even = nodes % some_nodes == 0 and per_node % some_per_node == 0
        has_local_ranks = some_per_node >= min(2, per_node)
        count = some_nodes * some_per_node
        return some_nodes >= min(2, nodes), count >= 2, is_even, has_local_ranks, count

    shapes = [(some, each) for some in _smaller_counts(nodes) for each in _smaller_counts(per_node)]
    return max(((some, each) for some, each in shapes if some * each <= limit), key=worth)


def _smaller_counts(count: int) -> list[int]:
    """Return the divisors of a count, and 2, which may be none of them, if it is no more than the count."""
    return [smaller for smaller in range(1, count + 1) if smaller == 2 or count % smaller == 0]


def _fewer_tasks(distribution: TensorFlow, counts: ProcessCounts, limit: int) -> ProcessCounts:
    """Return at most `limit` of TensorFlow's tasks, with workers and parameter servers if there were both."""
    servers = min(counts.parameter_servers, max(limit // 2, limit - counts.training_processes))
    workers, _ = _fewer(counts.training_processes, 1, limit - servers)
    tasks = workers + servers
    fewest_on_a_node = min(2, counts.processes_per_node)
    nodes = min(counts.nodes, max(tasks // fewest_on_a_node, min(2, tasks)))
    return distribution.process_counts(nodes, {"worker_count": workers, "parameter_server_count": servers})
