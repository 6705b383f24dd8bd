"""What a value of a pipeline comes to: known, unknown (and why), or wrong (with a diagnostic)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from trainyard.errors import UsageError
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.literals import ParameterValue
from trainyard.spec.model import Value
from trainyard.spec.rules.references import NOT_SEEN_OFFLINE
from trainyard.spec.set_arguments import COMMAND_LINE


@dataclass(frozen=True)
class DataPath:
    """Data that a job reads: a local path or an address, as it was written.

    `type` is what the job's or the pipeline's input declares, which Azure ML goes by where the component's port has
    another: a job may give a file to a port for folders. Empty where neither declares one.
    """

    text: str
    type: str = ""


@dataclass(frozen=True)
class JobOutput:
    """What a job writes: the job's dotted name and the output's."""

    job: str
    port: str


@dataclass(frozen=True)
class PipelineOutput:
    """Where a job's output goes that is bound to an output of the pipeline."""

    name: str


KnownValue = ParameterValue | DataPath | JobOutput | PipelineOutput | None


class Known(NamedTuple):
    """A value, where it was written, and the key that `--set` takes for it. None: optional, and not given."""

    value: KnownValue
    written: Value
    key: str = ""


class Unknown(NamedTuple):
    """Why a value is not known before the pipeline runs, where it is used, and how to set it.

    `output` is the job's output that holds the value, where a job writes it.
    """

    reason: str
    span: Span
    hint: str = ""
    output: JobOutput | None = None


class Wrong(NamedTuple):
    """A value that cannot be right."""

    diagnostic: Diagnostic


Resolved = Known | Unknown | Wrong


def settled(resolved: Resolved) -> KnownValue:
    """Return a value that has to be known. Raises SpecError where it is not, UsageError where `--set` gave it."""
    if isinstance(resolved, Known):
        return resolved.value
    if isinstance(resolved, Unknown):
        raise SpecError(NOT_SEEN_OFFLINE.at(resolved.span, resolved.reason, hint=resolved.hint))
    if resolved.diagnostic.span.file == COMMAND_LINE:
        raise UsageError(". ".join(filter(None, (resolved.diagnostic.message, resolved.diagnostic.hint))))
    raise SpecError(resolved.diagnostic)
