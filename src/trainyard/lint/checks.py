"""The checks of the linter, by what each looks at: functions that yield findings of the rules declared beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.documents import Document
from trainyard.spec.file_kinds import Kind

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
    """Register a check of files, of commands, of pipelines, or of the places where commands run."""

    def register(function: _Function) -> _Function:
        CHECKS[subject].append(function)
        return function

    return register
