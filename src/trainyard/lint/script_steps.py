"""Parallel and Spark steps in a file: their code, their script, and the arguments that it gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.spec.documents import Document, Entry, Node
from trainyard.spec.job_types import script_file
from trainyard.spec.shell_words import Call, CalledScript, Word, simple_commands


class ScriptStep(NamedTuple):
    """A parallel or Spark component, or a job with a script of its own. `task` is what has the code."""

    node: Node
    task: Node
    document: Document
    is_spark: bool

    @property
    def code(self) -> Path | None:
        """The folder of its code, if that is local."""
        code = self.task.get("code")
        if code is None or not code.is_text or "${{" in code.text or ":" in code.text:
            return None
        folder = self.document.file.parent / code.text
        return folder if os.path.isdir(folder) else None

    @property
    def entry(self) -> Entry | None:
        """The key that names its script, with the script."""
        if self.is_spark:
            return self.task.entries_of("entry").get("file")
        return self.task.entries.get("entry_script")

    @property
    def script(self) -> Path | None:
        """Its script, if that is in the code."""
        entry, code = self.entry, self.code
        if entry is None or code is None or not entry.value.is_text:
            return None
        return script_file(code, entry.value.text)

    def port_type(self, name: str, kind: str = "inputs") -> str:
        """The type of a port that is declared or set in place; empty if it is not known."""
        port = self.node.find(kind, name)
        found = port.get("type") if port is not None and port.is_mapping else None
        return found.text if found is not None else ""

    def call(self) -> CalledScript | None:
        """How its script is called; None if that cannot be read."""
        written = self.task.entries.get("args" if self.is_spark else "program_arguments")
        script, code, entry = self.script, self.code, self.entry
        text = written.value if written is not None else entry.value if entry is not None else None
        if script is None or code is None or entry is None or text is None or not text.is_text:
            return None
        words = tuple(word for words in simple_commands(text.text) for word in words) if written is not None else ()
        caller = written.key if written is not None else entry.key
        call = Call(Word(entry.value.text, 0, 0), False, words, False)
        return CalledScript(call, code, script, text, self.document, {}, caller=caller)


def script_steps(document: Document) -> Iterator[ScriptStep]:
    """The parallel and Spark steps of a file that have scripts of their own."""
    root = document.root
    for node in (root, *(entry.value for entry in root.entries_of("jobs").values() if entry.value.is_mapping)):
        kind = node.get("type")
        is_spark = kind is not None and kind.text.lower() == "spark"
        task = node if is_spark else node.get("task")
        is_parallel = kind is not None and kind.text.lower() == "parallel"
        if (is_spark or is_parallel) and task is not None and task.is_mapping:
            yield ScriptStep(node, task, document, is_spark)
