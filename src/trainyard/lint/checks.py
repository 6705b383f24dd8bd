"""How a rule of the linter is declared: one decorated function carries its id, severity, text and example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic, Severity
from trainyard.spec.documents import Document
from trainyard.spec.kinds import Kind
from trainyard.spec.rule import Example, Rule

# What a check looks at: a LintedFile, a ParsedCommand, a ParsedPipeline, or a Placement (one use of a command).
Subject = Literal["file", "command", "pipeline", "placement"]
Check = Callable[[Any, LintContext], Iterator[Diagnostic]]
_Function = TypeVar("_Function", bound=Check)

CHECKS: dict[Subject, list[Check]] = {"file": [], "command": [], "pipeline": [], "placement": []}


class LintedFile(NamedTuple):
    """A whole file, with what it is."""

    document: Document
    kind: Kind


def check(subject: Subject) -> Callable[[_Function], _Function]:
    """Register a function that reports findings of rules declared elsewhere."""

    def register(function: _Function) -> _Function:
        CHECKS[subject].append(function)
        return function

    return register


def rule(
    subject: Subject,
    id: str,
    name: str,
    severity: Severity,
    *,
    summary: str,
    why: str,
    example: str,
    suppressed_by_errors: bool = False,
    pedantic: bool = False,
) -> Callable[[Check], Rule]:
    """Declare a rule whose check is the decorated function; its name then stands for the rule.

    The function yields the findings, which it makes with `NAME.at(span, message, …)`.
    """

    def declare(function: Check) -> Rule:
        CHECKS[subject].append(function)
        return Rule(id, name, severity, summary, why, Example(example), suppressed_by_errors, pedantic)

    return declare
