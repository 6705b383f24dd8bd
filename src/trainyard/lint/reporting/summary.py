"""How it ended, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from trainyard.spec.diagnostic import Diagnostic


def summarise(diagnostics: Sequence[Diagnostic], files_checked: int, *, known: int = 0, fixable: int = 0) -> str:
    """How many findings there are, in how many files, what is silenced, what can be mended, and where to read more."""
    counts = Counter(diagnostic.severity for diagnostic in diagnostics)
    words = f"{_count(counts['error'], 'error')}, {_count(counts['warning'], 'warning')}"
    if counts["info"]:
        words += f", {_count(counts['info'], 'note')}"
    line = f"{words if diagnostics else 'no findings'} in {_count(files_checked, 'file')}"
    if not diagnostics and not files_checked:
        line = "no Azure ML files are among these: nothing was checked"
    if known > 0:
        line += f"; {known} more known to the baseline"
    if fixable:
        line += f"; --fix mends {fixable} of them"
    if diagnostics:
        line += f"; `trainyard explain {diagnostics[0].rule}` tells more"
    return line


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
