"""The values that a pipeline's bindings come to, as far as they are written down."""

from __future__ import annotations

from typing import Any

from trainyard.spec.diagnostic import SpecError
from trainyard.spec.expressions import only_binding
from trainyard.spec.model import Job, Pipeline, Value
from trainyard.spec.rules.keys import OUT_OF_BOUNDS

_DEEPEST_CHAIN = 20
"""Of bindings to bindings; a longer one goes in a circle."""


def value_of(value: Value | None, job: Job, pipeline: Pipeline, depth: int = 0) -> Any:
    """What a value comes to: itself, or what its binding leads to; None where nothing is written there."""
    if value is None or depth > _DEEPEST_CHAIN:
        return None
    binding = only_binding(value.data) if isinstance(value.data, str) else None
    if binding is None:
        return value.data
    scope, name = binding.path[:-1], binding.path[-1]
    if scope == ("parent", "inputs"):
        port = pipeline.inputs.get(name)
        return value_of(port.default, job, pipeline, depth + 1) if port else None
    if scope == ("inputs",):
        return input_value(job, name, pipeline, depth + 1)
    if len(scope) == 4 and scope[:2] == ("parent", "jobs") and scope[3] == "inputs" and scope[2] in pipeline.jobs:
        return input_value(pipeline.jobs[scope[2]], name, pipeline, depth + 1)
    return None


def input_value(job: Job, name: str, pipeline: Pipeline, depth: int = 0) -> Any:
    """What a job's input comes to: what it is given, else its component's default, else None."""
    port = job.component.inputs.get(name)
    given = job.inputs.get(name, port.default if port else None)
    return value_of(given, job, pipeline, depth)


def count_of(value: Value | None, what: str, default: int, job: Job, pipeline: Pipeline, *, least: int = 1) -> int:
    """A whole number that a job's processes are counted with.

    Raises `SpecError` at the value when it comes to something else, or to less than `least`.
    """
    if value is None:
        return default
    data = value_of(value, job, pipeline)
    number = int(data) if isinstance(data, str) and data.isdecimal() else data
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        found = f"is {data!r}" if data == value.data else f"comes to {data!r}"
        message = f"{what} of the job '{job.name}' {found}, where a whole number of at least {least} is wanted"
        raise SpecError(OUT_OF_BOUNDS.at(value.span, message))
    return number


def whole_number_input(job: Job, name: str, pipeline: Pipeline) -> int | None:
    """An input that is a positive whole number, or None."""
    data = input_value(job, name, pipeline)
    number = int(data) if isinstance(data, str) and data.isdecimal() else data
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else None
