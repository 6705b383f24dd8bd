"""The Python scripts that a command calls, found in its snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.lint.shell_words import Call, Word, python_calls
from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Node
from trainyard.spec.parsed import ParsedCommand


@dataclass(frozen=True)
class CalledScript:
    """A call, the snapshot's folder, and the file in it; None when there is no such file."""

    call: Call
    root: Path
    file: Path | None
    command: Node
    seen: ParsedCommand

    def span(self, word: Word) -> Span:
        """Where a word of the command stands."""
        return self.seen.reading.document.span_within(self.command, word.start, word.end)


def called_scripts(seen: ParsedCommand) -> Iterator[CalledScript]:
    """Every call of Python in a command whose code can be seen from here."""
    command, root = seen.node.get("command"), seen.component.code
    if command is None or not command.is_text or root is None or not os.path.isdir(root):
        return
    for call in python_calls(command.text):
        yield CalledScript(call, root, _file_of(call, seen), command, seen)


def _file_of(call: Call, seen: ParsedCommand) -> Path | None:
    assert seen.component.code is not None
    for root in (seen.component.code, *(include.parent for include in seen.component.additional_includes)):
        for relative in _candidates(call):
            file = root / relative
            try:
                if os.path.isfile(file):
                    return file
            except (OSError, ValueError):
                continue
    return None


def _candidates(call: Call) -> Iterator[str]:
    if not call.is_module:
        yield call.script.text
        return
    path = call.script.text.replace(".", "/")
    yield f"{path}.py"
    yield f"{path}/__main__.py"
