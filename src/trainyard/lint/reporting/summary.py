"""How it ended, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.spec.diagnostic import Diagnostic


def summarise(diagnostics: Sequence[Diagnostic], files_checked: int, *, known: int = 0, fixable: int = 0) -> str:
    """How many findings there are, in how many files, and what is silenced or can be mended."""
    errors = sum(diagnostic.severity == "error" for diagnostic in diagnostics)
    words = f"{_count(errors, 'error')}, {_count(len(diagnostics) - errors, 'warning')}"
    line = f"{words if diagnostics else 'no findings'} in {_count(files_checked, 'file')}"
    if known > 0:
        line += f"; {known} more known to the baseline"
    if fixable:
        line += f"; --fix mends {fixable} of them"
    return line


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
