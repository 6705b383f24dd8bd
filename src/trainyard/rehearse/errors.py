"""Errors of a local run: in its YAML or on the command line, or not possible on this machine (exit code 1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import UsageError, UserError
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.set_arguments import COMMAND_LINE

__all__ = ["RunError", "UsageError", "error_at", "writing"]

_RULE = "local-run"
"""The rule that diagnostics of this package carry."""


class RunError(UserError):
    """A run that this machine does not allow: a full disk, a folder that cannot be written."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into the RunError of a path that cannot be written: the reason, and what to do."""
    try:
        yield
    except OSError as error:
        advice = "free some space or make it writable, or put runs elsewhere with --run-dir DIR"
        if isinstance(error, FileNotFoundError):
            advice = "its folder was deleted while the run used it"
        raise RunError(f"{path}: cannot be written ({error.strerror or error}); {advice}") from error


def error_at(span: Span, message: str, hint: str = "") -> SpecError | UsageError:
    """Return a `SpecError` at the place in the YAML, or a `UsageError` when the value came from the command line."""
    if span.file == COMMAND_LINE:
        return UsageError(f"{message}; {hint}" if hint else message)
    return SpecError(Diagnostic(span, _RULE, message, hint=hint))
