"""Findings for other programs: a JSON list, and the workflow commands of GitHub Actions.

GitHub shows workflow commands as annotations beside the lines of a pull request. Source:
https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, read 2026-11-21.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainyard.lint.reporting.text import file_name, relative_name
from trainyard.spec.diagnostic import Diagnostic, Severity, Span

_COMMAND: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}


def as_json(diagnostics: Iterable[Diagnostic], *, relative_to: Path) -> str:
    """Return findings as a JSON list; lines and columns count from 1, `end_column` is exclusive."""
    # ASCII, since the name of a file may contain what cannot be encoded (a lone surrogate).
    return json.dumps([_as_object(diagnostic, relative_to) for diagnostic in diagnostics], indent=2)


def _as_object(diagnostic: Diagnostic, relative_to: Path) -> dict[str, object]:
    span = diagnostic.span
    return {
        **_place(span, relative_to),
        "end_line": span.end_line,
        "end_column": span.end_column,
        "rule": diagnostic.rule,
        "severity": diagnostic.severity,
        "message": diagnostic.message,
        "hint": diagnostic.hint,
        "related": [{**_place(each.span, relative_to), "message": each.message} for each in diagnostic.related],
    }


def _place(span: Span, relative_to: Path) -> dict[str, object]:
    return {"file": relative_name(span.file, relative_to), "line": span.line, "column": span.column}


def as_github(diagnostics: Sequence[Diagnostic], *, relative_to: Path) -> str:
    """Return a command per finding. `relative_to` is the root of the checkout, to which names must be relative."""
    return "\n".join(_as_command(diagnostic, relative_to) for diagnostic in diagnostics)


def checkout_folder() -> Path:
    """Return the root of the checkout if it is known and contains the working directory, else the latter."""
    here = Path.cwd()
    workspace = os.environ.get("GITHUB_WORKSPACE", "")
    return Path(workspace) if workspace and here.is_relative_to(workspace) else here


def _as_command(diagnostic: Diagnostic, relative_to: Path) -> str:
    span = diagnostic.span
    properties: dict[str, object] = {"file": Path(file_name(span.file, relative_to)).as_posix(), "line": span.line}
    if span.end_line == span.line:
        # GitHub accepts columns only for a single line.
        properties |= {"col": span.column, "endColumn": span.end_column}
    else:
        properties["endLine"] = span.end_line
    properties["title"] = f"{diagnostic.rule} (Trainyard)"
    written = ",".join(f"{name}={_escape_property(str(value))}" for name, value in properties.items())
    return f"::{_COMMAND[diagnostic.severity]} {written}::{_escape(_text(diagnostic, relative_to))}"


def _text(diagnostic: Diagnostic, relative_to: Path) -> str:
    related = [
        f"{file_name(each.span.file, relative_to)}:{each.span.line}: {each.message}" for each in diagnostic.related
    ]
    return "\n".join(filter(None, (diagnostic.message, diagnostic.hint, *related)))


def _escape(text: str) -> str:
    encodable = text.encode("utf-8", errors="backslashreplace").decode()
    return encodable.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
