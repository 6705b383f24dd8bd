"""What a value of a pipeline comes to: known, unknown (and why), or wrong (with a diagnostic)."""

from typing import Any, NamedTuple

from trainyard.errors import UsageError
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError
from trainyard.spec.documents import Value, describe
from trainyard.spec.literals import MISSING_INPUT, WRONG_LITERAL, LiteralError, ParameterValue, typed_literal
from trainyard.spec.model import Port
from trainyard.spec.parsed import NOT_SEEN_OFFLINE
from trainyard.spec.rule import Rule
from trainyard.spec.set_arguments import COMMAND_LINE, several_in_one


class DataPath(NamedTuple):
    """Data that a job reads: a local path or an address, as it was written.

    `type` is what the job's or the pipeline's input declares, which Azure ML goes by where the component's port has
    another: a job may give a file to a port for folders. Empty where neither declares one.
    """

    text: str
    type: str = ""


class JobOutput(NamedTuple):
    """What a job writes: the job's dotted name and the output's."""

    job: str
    port: str


class PipelineOutput(NamedTuple):
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


def value_of_port(given: Known, port: Port, value: Value, *, takes_any_literal: bool) -> Resolved:
    """Return a value by the type of the port that it is given to; `value` is what was written there, or a binding.

    With `takes_any_literal`, a literal of the YAML that does not suit the port is passed on as it is written.
    """
    if given.value is None and given.written.data is None:
        if port.optional:
            return given
        return wrong_value(value, MISSING_INPUT, f"'{port.name}' is required, and is bound to nothing", given)
    if port.is_parameter:
        return _literal_of_port(given, port, value, takes_any_literal=takes_any_literal)
    if isinstance(given.value, (DataPath, JobOutput)):
        return given
    if isinstance(given.value, str):
        return given._replace(value=DataPath(given.value, port.type))
    message = f"'{port.name}' is of type {port.type} and cannot be {describe(given.written.data)}"
    return wrong_value(value, WRONG_LITERAL, message, given)


def _literal_of_port(given: Known, port: Port, value: Value, *, takes_any_literal: bool) -> Resolved:
    """What a parameter is given; files only from the command line, which may give them in place of a string."""
    written = given.written
    is_from_command_line = written.span.file == COMMAND_LINE
    if isinstance(given.value, (DataPath, JobOutput)):
        if is_from_command_line:
            return given
        message = f"'{port.name}' is of type {port.type} and cannot be bound to files"
        return wrong_value(value, WRONG_LITERAL, message, given)
    is_as_written = given.value == written.data and type(given.value) is type(written.data)
    if given.value is not None and not is_as_written:
        written = written._replace(data=given.value, text=str(given.value))
    try:
        return given._replace(value=typed_literal(written, port))
    except LiteralError as error:
        if takes_any_literal and not is_from_command_line and is_literal(written.data):
            return given._replace(value=written.data)
        bound = (Related(value.span, f"it is passed to '{port.name}' here"),) if value.span != written.span else ()
        return wrong_value(given.written, error.rule, str(error), given, error.hint, (*bound, port.declared))


def is_literal(data: Any) -> bool:
    """Whether data is one value, and not a list, a mapping or nothing."""
    return isinstance(data, (str, int, float))


def wrong_value(
    value: Value,
    rule: Rule,
    message: str,
    resolved: Known | None = None,
    hint: str = "",
    related: tuple[Related, ...] = (),
) -> Wrong:
    """A mistake at a value; `resolved` is what it came to, which the command line may have given."""
    if resolved is not None and resolved.written.span.file == COMMAND_LINE:
        message = f"--set {resolved.key}={resolved.written.text}: {message}"
        return Wrong(rule.at(resolved.written.span, message, several_in_one(resolved.written.text) or hint))
    if resolved is not None and resolved.written.span != value.span:
        related = (*related, Related(resolved.written.span, "the value is written here"))
    return Wrong(rule.at(value.span, message, hint, related))
