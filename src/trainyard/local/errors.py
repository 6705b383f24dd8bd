"""What can go wrong with a local run that is nobody's YAML: used wrongly (exit code 2), or not possible here (1)."""

from __future__ import annotations

from trainyard.errors import UsageError, UserError
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.set_arguments import COMMAND_LINE

__all__ = ["RunError", "UsageError", "error_at"]

_RULE = "local-run"
"""The rule that diagnostics of this package carry."""


class RunError(UserError):
    """A run that this machine does not allow: a full disk, a folder that cannot be written."""


def error_at(span: Span, message: str, hint: str = "") -> SpecError | UsageError:
    """Return a `SpecError` at the place in the YAML, or a `UsageError` when the value came from the command line."""
    if span.file == COMMAND_LINE:
        return UsageError(f"{message}; {hint}" if hint else message)
    return SpecError(Diagnostic(span, _RULE, message, hint=hint))
