"""What is wrong, and where: the one form in which every part of Trainyard says so."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "info"]


class Span(NamedTuple):
    """A stretch of a file. Lines and columns count from 1; the end is exclusive in its column."""

    file: Path
    line: int = 1
    column: int = 1
    end_line: int = 1
    end_column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def contains(self, other: "Span") -> bool:
        """Return whether another stretch begins within this one."""
        begin, end = (self.line, self.column), (self.end_line, self.end_column)
        return self.file == other.file and begin <= (other.line, other.column) < end


class Related(NamedTuple):
    """Another place that explains a diagnostic: where a name is declared, which template line wrote it."""

    span: Span
    message: str


class Diagnostic(NamedTuple):
    """One finding: where, which rule, what is wrong in one line, and (hint) what to do about it.

    `replacement` is what to write in place of what the span covers, where that is safe to do unasked. An error of a
    rule that is let pass does not stop a run.
    """

    span: Span
    rule: str
    message: str
    severity: Severity = "error"
    hint: str = ""
    related: tuple[Related, ...] = ()
    replacement: str | None = None
    stops_a_run: bool = True


class SpecError(ValueError):
    """Something a user wrote that cannot be worked with; carries the diagnostics that say what and where."""

    def __init__(self, diagnostics: Diagnostic | Sequence[Diagnostic]) -> None:
        self.diagnostics = (diagnostics,) if isinstance(diagnostics, Diagnostic) else tuple(diagnostics)
        super().__init__("\n".join(f"{d.span}: {d.message}" for d in self.diagnostics))
