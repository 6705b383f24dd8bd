"""`--set inputs.X=V` and `--set jobs.J.inputs.X=V`: a pipeline with some of its inputs set on the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainyard.foundation.suggestions import did_you_mean
from trainyard.local.errors import UsageError
from trainyard.local.values import ParameterValue, checked_value, written
from trainyard.spec.diagnostic import Span
from trainyard.spec.expressions import only_binding
from trainyard.spec.model import Job, Pipeline, Port, Value
from trainyard.spec.ports import literal_type

COMMAND_LINE = Path("--set")
"""The file that the span of an overridden value names."""


def apply_overrides(pipeline: Pipeline, overrides: Mapping[str, str]) -> Pipeline:
    """The pipeline with these inputs set; paths are taken relative to the working directory, as a shell's are.

    Raises `UsageError` on a key that names no input (with the nearest that there is), or a value that the declared
    type, range or choice does not allow.
    """
    for key, text in overrides.items():
        pipeline = _apply(pipeline, key, text)
    return pipeline


def with_absolute_paths(pipeline: Pipeline, overrides: Mapping[str, str]) -> dict[str, str]:
    """The same overrides, with local paths such that they hold in any working directory: what a record keeps."""
    ports = {f"inputs.{name}": port for name, port in pipeline.inputs.items()}
    for job in pipeline.jobs.values():
        ports |= {f"jobs.{job.name}.inputs.{name}": port for name, port in job.component.inputs.items()}
    return {
        key: text if ports[key].is_parameter else str(Path(text).expanduser().absolute())
        for key, text in overrides.items()
    }


def _apply(pipeline: Pipeline, key: str, text: str) -> Pipeline:
    parts = key.split(".")
    if parts[0] == "inputs" and len(parts) > 1:
        name = ".".join(parts[1:])
        if name not in pipeline.inputs:
            raise UsageError(f"--set {key}: the pipeline has no input {name!r}. {did_you_mean(name, pipeline.inputs)}")
        changed = _set_pipeline_input(pipeline, pipeline.inputs[name], key, text)
        return dataclasses.replace(pipeline, inputs={**pipeline.inputs, name: changed})
    if parts[0] == "jobs" and len(parts) > 3 and parts[2] == "inputs":
        job_name, name = parts[1], ".".join(parts[3:])
        if job_name not in pipeline.jobs:
            raise UsageError(f"--set {key}: there is no job {job_name!r}. {did_you_mean(job_name, pipeline.jobs)}")
        job = _set_job_input(pipeline.jobs[job_name], name, key, text)
        return dataclasses.replace(pipeline, jobs={**pipeline.jobs, job_name: job})
    known = [f"inputs.{name}" for name in pipeline.inputs]
    known += [f"jobs.{job.name}.inputs.{name}" for job in pipeline.jobs.values() for name in job.component.inputs]
    raise UsageError(f"--set {key}: names no input. {did_you_mean(key, known)}")


def _set_pipeline_input(pipeline: Pipeline, port: Port, key: str, text: str) -> Port:
    """The port with its new value, which suits its own type where it declares one, and each port it is bound to."""
    if not port.is_parameter:
        return dataclasses.replace(port, path=_value(text, text))
    bound_ports = list(_ports_bound_to(pipeline, port.name))
    deciding = bound_ports
    if not _is_bare_literal(port):
        deciding = [port, *bound_ports]
    elif not bound_ports:
        # It stands within texts or counts the processes; `1` does not say that it is never 0.5.
        deciding = [dataclasses.replace(port, type="number") if port.type == "integer" else port]
    values = [_checked(decider, key, text) for decider in deciding]
    port_type = literal_type(values[0]) if _is_bare_literal(port) else port.type
    return dataclasses.replace(port, type=port_type, default=_value(values[0], text))


def _is_bare_literal(port: Port) -> bool:
    """Whether the input is written as `name: 1`, so that its type is only what that value happens to have."""
    return port.default is not None and port.default.span == port.span


def _ports_bound_to(pipeline: Pipeline, name: str) -> Iterator[Port]:
    """The parameters of jobs that are bound to an input of the pipeline by nothing but its name."""
    for job in pipeline.jobs.values():
        for own_name, value in job.inputs.items():
            text, port = written(value), job.component.inputs.get(own_name)
            binding = only_binding(text) if isinstance(text, str) else None
            is_bound = binding is not None and binding.path == ("parent", "inputs", *name.split("."))
            if is_bound and port is not None and port.is_parameter:
                yield port


def _set_job_input(job: Job, name: str, key: str, text: str) -> Job:
    ports = job.component.inputs
    if name not in ports:
        raise UsageError(f"--set {key}: job {job.name!r} has no input {name!r}. {did_you_mean(name, ports)}")
    data = _checked(ports[name], key, text) if ports[name].is_parameter else {"path": text}
    return dataclasses.replace(job, inputs={**job.inputs, name: _value(data, text)})


def _value(data: object, text: str) -> Value:
    return Value(data=data, span=Span(COMMAND_LINE), text=text)


def _checked(port: Port, key: str, text: str) -> ParameterValue:
    try:
        return checked_value(port, text)
    except ValueError as error:
        raise UsageError(f"--set {key}={text}: {error} (type: {port.type})") from error
