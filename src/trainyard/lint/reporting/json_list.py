"""Findings as a JSON list, for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from trainyard.lint.reporting.places import relative_name
from trainyard.spec.diagnostic import Diagnostic


def as_json(diagnostics: Iterable[Diagnostic], *, relative_to: Path) -> str:
    """Findings as a JSON list; lines and columns count from 1, ends are exclusive in their column."""
    # ASCII, since what cannot be encoded (a lone surrogate) may stand in a file's name.
    return json.dumps([_one(diagnostic, relative_to) for diagnostic in diagnostics], indent=2)


def _one(diagnostic: Diagnostic, relative_to: Path) -> dict[str, object]:
    span = diagnostic.span
    return {
        "file": relative_name(span.file, relative_to),
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
        "rule": diagnostic.rule,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "hint": diagnostic.hint,
        "related": [
            {
                "file": relative_name(related.span.file, relative_to),
                "line": related.span.line,
                "column": related.span.column,
                "message": related.message,
            }
            for related in diagnostic.related
        ],
    }
