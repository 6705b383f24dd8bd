"""Findings as SARIF 2.1.0, which code scanning of GitHub and Azure DevOps and many editors read.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html; sections are named where they decide.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainyard import __version__
from trainyard.lint.fingerprints import Fingerprints
from trainyard.lint.reporting.places import file_name
from trainyard.lint.rule import Example, Rule
from trainyard.lint.rules import RULES
from trainyard.spec.diagnostic import Diagnostic, Severity, Span

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/cos02/schemas/sarif-schema-2.1.0.json"
_LEVEL: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
# The name that relative addresses are resolved by (3.4.4), as GitHub's own tools write it.
_BASE = "%SRCROOT%"


def as_sarif(diagnostics: Sequence[Diagnostic], *, relative_to: Path) -> str:
    """A SARIF log of one run: the rules that were applied, and the findings in files named from a folder."""
    described = [_rule(rule) for rule in RULES.values() if rule.severity is not None]
    known = {rule["id"] for rule in described}
    others = {diagnostic.rule: diagnostic.severity for diagnostic in diagnostics if diagnostic.rule not in known}
    described += [{"id": rule, "defaultConfiguration": {"level": _LEVEL[level]}} for rule, level in others.items()]
    index = {rule["id"]: position for position, rule in enumerate(described)}
    fingerprints = Fingerprints(relative_to)
    run = {
        "tool": {"driver": {"name": "trainyard", "semanticVersion": __version__, "rules": described}},
        # Columns count characters, not UTF-16 units (3.14.17).
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_BASE: {"uri": relative_to.absolute().as_uri().rstrip("/") + "/"}},
        "results": [
            _result(diagnostic, index[diagnostic.rule], fingerprint, relative_to)
            for diagnostic, fingerprint in zip(diagnostics, fingerprints.of_all(diagnostics), strict=True)
        ],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(rule: Rule) -> dict[str, Any]:
    assert rule.severity is not None
    help_text = f"{rule.meaning}\n\n{rule.detail}"
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.meaning},
        "fullDescription": {"text": rule.detail},
        "help": {"text": help_text, "markdown": help_text + _example(rule.example)},
        "defaultConfiguration": {"level": _LEVEL[rule.severity]},
    }


def _example(example: Example | None) -> str:
    if example is None:
        return ""
    return f"\n\nWrong:\n{_files(example.wrong)}\n\nRight:\n{_files(example.right)}"


def _files(files: Mapping[str, str]) -> str:
    return "\n".join(f"\n`{name}`\n\n```yaml\n{text.rstrip()}\n```" for name, text in files.items())


def _result(diagnostic: Diagnostic, rule_index: int, fingerprint: str, relative_to: Path) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": diagnostic.rule,
        "ruleIndex": rule_index,
        "level": _LEVEL[diagnostic.severity],
        "message": {"text": " ".join(filter(None, (_sentence(diagnostic.message), diagnostic.hint)))},
        "locations": [{"physicalLocation": _location(diagnostic.span, relative_to)}],
        "partialFingerprints": {"trainyard/v1": fingerprint},
    }
    if diagnostic.related:
        result["relatedLocations"] = [
            {
                "id": number,
                "message": {"text": related.message},
                "physicalLocation": _location(related.span, relative_to),
            }
            for number, related in enumerate(diagnostic.related, start=1)
        ]
    return result


def _sentence(message: str) -> str:
    """A message with a stop, as a hint follows it; SARIF wants one text (3.11.1)."""
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _location(span: Span, relative_to: Path) -> dict[str, Any]:
    return {
        "artifactLocation": _artifact(span.file, relative_to),
        "region": {
            "startLine": span.line,
            "startColumn": span.column,
            "endLine": max(span.line, span.end_line),
            # Exclusive, as ours (3.30.8).
            "endColumn": span.end_column,
        },
    }


def _artifact(file: Path, relative_to: Path) -> dict[str, str]:
    name = Path(file_name(file, relative_to))
    if name.is_absolute():
        return {"uri": name.as_uri()}
    return {"uri": quote(name.as_posix().encode("utf-8", errors="surrogateescape")), "uriBaseId": _BASE}
