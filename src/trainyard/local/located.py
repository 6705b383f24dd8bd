"""Mistakes of a value, told at the place where it was written: in the YAML, or on the command line."""

from __future__ import annotations

from trainyard.local.errors import UsageError
from trainyard.local.overrides import COMMAND_LINE
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.expressions import ExpressionError, Segment, parse_expressions

RULE = "local-run"
"""The rule that diagnostics of this package carry."""


def mistake(span: Span, message: str, hint: str = "") -> SpecError | UsageError:
    """A `SpecError` at the place in the YAML, or a `UsageError` when the value came from the command line."""
    if span.file == COMMAND_LINE:
        return UsageError(f"{message}; {hint}" if hint else message)
    return SpecError(Diagnostic(span, RULE, message, hint=hint))


def parsed(text: str, span: Span) -> tuple[Segment, ...]:
    """The segments of a text that stands at `span`. Raises `SpecError` for a text that breaks the grammar."""
    try:
        return parse_expressions(text)
    except ExpressionError as error:
        raise mistake(span, str(error)) from error
