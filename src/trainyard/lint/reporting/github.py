"""Findings as workflow commands of GitHub Actions, which shows them as notes beside the lines of a pull request.

Source: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, read 2026-11-21.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from trainyard.lint.reporting.places import file_name
from trainyard.spec.diagnostic import Diagnostic, Severity

_COMMAND: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}


def as_github(diagnostics: Sequence[Diagnostic], *, relative_to: Path) -> str:
    """A command per finding. `relative_to` is the root of the checkout, as GitHub wants files named from there."""
    return "\n".join(_one(diagnostic, relative_to) for diagnostic in diagnostics)


def checkout_folder() -> Path:
    """The root of the checkout, where that is known and the working directory lies in it; else the latter."""
    here = Path.cwd()
    workspace = os.environ.get("GITHUB_WORKSPACE", "")
    return Path(workspace) if workspace and here.is_relative_to(workspace) else here


def _one(diagnostic: Diagnostic, relative_to: Path) -> str:
    span = diagnostic.span
    properties: dict[str, object] = {"file": Path(file_name(span.file, relative_to)).as_posix(), "line": span.line}
    if span.end_line == span.line:
        # Columns are taken with one line only.
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
