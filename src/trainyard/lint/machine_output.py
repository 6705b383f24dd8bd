"""Findings for other programs: a JSON list, the workflow commands of GitHub Actions, and SARIF 2.1.0.

GitHub shows workflow commands as annotations beside the lines of a pull request. SARIF is for the code scanning of
GitHub and Azure DevOps, and for many editors; its section numbers are given where they matter. Sources:
https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions, read 2026-11-21, and
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from trainyard import __version__
from trainyard.lint.explanation import as_page
from trainyard.lint.fingerprints import Fingerprints
from trainyard.lint.fixes import written_as
from trainyard.lint.rules import RULES
from trainyard.lint.text_output import Sources, file_name, relative_name
from trainyard.resources import DISTRIBUTION
from trainyard.spec.diagnostic import Diagnostic, Severity, Span
from trainyard.spec.rule import Rule

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
    texts = {name: _escape(str(value)).replace(":", "%3A").replace(",", "%2C") for name, value in properties.items()}
    written = ",".join(f"{name}={text}" for name, text in texts.items())
    return f"::{_COMMAND[diagnostic.severity]} {written}::{_escape(_text(diagnostic, relative_to))}"


def _text(diagnostic: Diagnostic, relative_to: Path) -> str:
    related = [
        f"{file_name(each.span.file, relative_to)}:{each.span.line}: {each.message}" for each in diagnostic.related
    ]
    return "\n".join(filter(None, (diagnostic.message, diagnostic.hint, *related)))


def _escape(text: str) -> str:
    encodable = text.encode("utf-8", errors="backslashreplace").decode()
    return encodable.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/cos02/schemas/sarif-schema-2.1.0.json"
_DRIVER = {
    "name": "trainyard",
    "semanticVersion": __version__,
    "informationUri": f"https://pypi.org/project/{DISTRIBUTION}/",
}
_LEVEL: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
# The base of relative addresses (3.4.4), named as GitHub's own tools name it.
_BASE = "%SRCROOT%"


def as_sarif(
    diagnostics: Sequence[Diagnostic],
    *,
    relative_to: Path,
    is_fixable: Callable[[Path], bool] = lambda _: True,
    texts: Mapping[Path, str] = MappingProxyType({}),
) -> str:
    """Return a SARIF log of one run: its findings, with files relative to a folder, and their rules.

    Findings contain the fix that `--fix` would make, unless their file is not `is_fixable`. `texts` are in place of
    what is on disk.
    """
    found = {diagnostic.rule for diagnostic in diagnostics}
    described = [_rule(rule) for rule in RULES.values() if rule.id in found]
    known = {rule["id"] for rule in described}
    others = {diagnostic.rule: diagnostic.severity for diagnostic in diagnostics if diagnostic.rule not in known}
    described += [{"id": rule, "defaultConfiguration": {"level": _LEVEL[level]}} for rule, level in others.items()]
    index = {rule["id"]: position for position, rule in enumerate(described)}
    fingerprints = Fingerprints(relative_to)
    places = _Places(relative_to, texts)
    results = []
    for diagnostic, fingerprint in zip(diagnostics, fingerprints.of_all(diagnostics), strict=True):
        result = _result(diagnostic, index[diagnostic.rule], fingerprint, places)
        fix = places.fix(diagnostic) if diagnostic.replacement and is_fixable(diagnostic.span.file) else None
        results.append({**result, "fixes": [fix]} if fix is not None else result)
    run = {
        "tool": {"driver": {**_DRIVER, "rules": described}},
        # As editors count columns, whatever this says (3.14.17).
        "columnKind": "utf16CodeUnits",
        "originalUriBaseIds": {_BASE: {"uri": relative_to.absolute().as_uri().rstrip("/") + "/"}},
        "results": results,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.summary}\n\n{rule.why}", "markdown": as_page(rule)},
        "defaultConfiguration": {"level": _LEVEL[rule.severity]},
    }


def _result(diagnostic: Diagnostic, rule_index: int, fingerprint: str, places: _Places) -> dict[str, Any]:
    # The hint follows the message: SARIF has one text (3.11.1).
    sentence = diagnostic.message if diagnostic.message.endswith((".", "?", "!")) else f"{diagnostic.message}."
    result: dict[str, Any] = {
        "ruleId": diagnostic.rule,
        "ruleIndex": rule_index,
        "level": _LEVEL[diagnostic.severity],
        "message": {"text": " ".join(filter(None, (sentence, diagnostic.hint)))},
        "locations": [{"physicalLocation": places.location(diagnostic.span)}],
        "partialFingerprints": {"trainyard/v1": fingerprint},
    }
    if diagnostic.related:
        result["relatedLocations"] = [
            {"id": number, "message": {"text": related.message}, "physicalLocation": places.location(related.span)}
            for number, related in enumerate(diagnostic.related, start=1)
        ]
    return result


class _Places:
    """Files and regions as SARIF writes them, relative to a folder."""

    def __init__(self, relative_to: Path, texts: Mapping[Path, str]) -> None:
        self._relative_to = relative_to
        self._sources = Sources(texts)

    def location(self, span: Span) -> dict[str, Any]:
        """Return a `physicalLocation` (3.29)."""
        return {"artifactLocation": self._artifact(span.file), "region": self._region(span)}

    def fix(self, diagnostic: Diagnostic) -> dict[str, Any] | None:
        """Return a `fix` (3.55): what `--fix` would write; None if it would write nothing."""
        span = diagnostic.span
        line = self._sources.line(span.file, span.line)
        if line is None or span.end_line != span.line:
            return None
        written = written_as(line[span.column - 1 : span.end_column - 1], diagnostic.replacement)
        if written is None:
            return None
        replacement = {"deletedRegion": self._region(span), "insertedContent": {"text": written}}
        change = {"artifactLocation": self._artifact(span.file), "replacements": [replacement]}
        return {"description": {"text": f"Write {written}"}, "artifactChanges": [change]}

    def _region(self, span: Span) -> dict[str, int]:
        end_line = max(span.line, span.end_line)
        return {
            "startLine": span.line,
            "startColumn": self._column(span.file, span.line, span.column),
            "endLine": end_line,
            # Exclusive, as ours (3.30.8).
            "endColumn": self._column(span.file, end_line, span.end_column),
        }

    def _column(self, file: Path, line: int, column: int) -> int:
        """Return a column in UTF-16 units: characters beyond U+FFFF take two."""
        before = (self._sources.line(file, line) or "")[: column - 1]
        return column if before.isascii() else column + sum(character > "\uffff" for character in before)

    def _artifact(self, file: Path) -> dict[str, str]:
        name = Path(file_name(file, self._relative_to))
        if name.is_absolute():
            return {"uri": name.as_uri()}
        return {"uri": quote(name.as_posix().encode("utf-8", errors="surrogateescape")), "uriBaseId": _BASE}
