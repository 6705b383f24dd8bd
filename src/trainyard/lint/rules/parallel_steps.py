"""Parallel steps: the entry script, what is split into mini-batches, and how much of it makes one."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard.foundation.suggestions import did_you_mean, only_close
from trainyard.lint.checks import LintedFile, check, rule
from trainyard.lint.context import LintContext
from trainyard.lint.rules.script_arguments import missing_flag, unknown_flag
from trainyard.lint.scripts.flags import Flag
from trainyard.lint.scripts.syntax import parse
from trainyard.lint.shell_words import Word, simple_commands
from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span
from trainyard.spec.documents import Document, Node
from trainyard.spec.expressions import only_binding
from trainyard.spec.model import PARAMETER_TYPES
from trainyard.spec.script_steps import script_file

_BYTES = re.compile(r"[0-9]+(?:[kKmMgG][bB])+")
_FILES = ("uri_folder", "uri_file")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class _Step:
    """A parallel component, or a job with a task of its own."""

    node: Node
    task: Node
    document: Document

    @property
    def code(self) -> Path | None:
        """The folder of its code, if that is local."""
        code = self.task.get("code")
        if code is None or not code.is_text or "${{" in code.text or ":" in code.text:
            return None
        folder = self.document.file.parent / code.text
        return folder if os.path.isdir(folder) else None

    @property
    def script(self) -> Path | None:
        """Its entry script, if that is in the code."""
        entry, code = self.task.get("entry_script"), self.code
        return script_file(code, entry.text) if entry is not None and entry.is_text and code is not None else None

    def port_type(self, name: str, kind: str = "inputs") -> str:
        """The type of a port that is declared or set in place; empty if it is not known."""
        port = self.node.find(kind, name)
        found = port.get("type") if port is not None and port.is_mapping else None
        return found.text if found is not None else ""


def _steps(file: LintedFile) -> Iterator[_Step]:
    root = file.document.root
    nodes = [root, *(entry.value for entry in root.entries_of("jobs").values() if entry.value.is_mapping)]
    for node in nodes:
        kind, task = node.get("type"), node.get("task")
        if kind is not None and kind.text.lower() == "parallel" and task is not None and task.is_mapping:
            yield _Step(node, task, file.document)


@rule(
    "file",
    "AML506",
    "parallel-entry",
    "warning",
    summary="The entry script of a parallel step lacks `init()` or `run(mini_batch)`.",
    why="The step imports the script, calls `init()` once in each process, and `run(mini_batch)` for each mini-batch. "
    "Azure ML's client does not look into it.",
    example="""\
type: parallel
name: score
inputs:
  images: {type: uri_folder}
input_data: ${{inputs.images}}
mini_batch_size: "10"
task:
  type: run_function
  code: ./src
  entry_script: ‸score.py
  environment: azureml:torch:3
=== src/score.py
def init():
    pass


def ‹score⇒run›(mini_batch):
    return mini_batch
""",
)
def parallel_entry(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for step in _steps(file):
        script = step.script
        tree = parse(script) if script is not None else None
        if script is None or tree is None:
            continue
        defined = _defined(tree)
        if defined is None:
            continue
        span = step.task.entries["entry_script"].value.span
        run = defined.get("run", ())
        if not run:
            message = f"{script.name} has no function run(mini_batch), which the step calls"
            hint = did_you_mean("run", [name for name in defined if only_close(name, ["run"])])
            yield parallel_entry.at(span, message, hint or "Write `def run(mini_batch):`.")
        elif all(isinstance(each, _FUNCTIONS) and not _takes_one(each) for each in run):
            related = [Related(_at(script, run[0]), "it is defined here")]
            yield parallel_entry.at(span, f"run() of {script.name} does not take the mini-batch", "", related)
        elif "init" not in defined:
            message = f"{script.name} has no function init(), which the step calls first"
            yield parallel_entry.at(span, message, "Write `def init():`.")


def _at(script: Path, node: ast.AST) -> Span:
    line = getattr(node, "lineno", 1)
    return Span(script, line, 1, line, 2)


def _defined(tree: ast.Module) -> Mapping[str, list[ast.AST]] | None:
    """What a module defines by name, also beneath `if` and `try`; None if it imports unknown names."""
    found: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        found.setdefault(name.id, []).append(node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name == "*":
                    return None
                found.setdefault(alias.asname or alias.name, []).append(node)
    return found


def _takes_one(function: ast.AST) -> bool:
    assert isinstance(function, _FUNCTIONS)
    arguments = function.args
    return bool(arguments.posonlyargs or arguments.args or arguments.vararg)


@check("file")
def _program_arguments(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """The arguments of a parallel step, compared with the flags of its script."""
    for step in _steps(file):
        script, arguments = step.script, step.task.get("program_arguments")
        code = step.code
        if script is None or code is None or (arguments is not None and not arguments.is_text):
            continue
        flags = context.flags_of(script, code)
        if flags is None or flags.commands or flags.task_folder is not None:
            continue
        words = [word for words in simple_commands(arguments.text if arguments else "") for word in words]
        for word in words if arguments is not None else ():
            name = word.text.partition("=")[0]
            if not name.startswith("--") or not word.is_plain or flags.find(name) is not None:
                continue
            known = [flag for flag in flags.flags if flag.startswith("--")]
            # Unknown flags may be left to something else; a slip in a known one is not meant so.
            meant = only_close(name, [flag for flag in known if flag not in {each.text for each in words}])
            if flags.takes_others and meant is None:
                continue
            assert arguments is not None
            span = step.document.span_within(arguments, word.start, word.start + len(name))
            severity: Severity | None = "warning" if flags.takes_others else None
            hint = did_you_mean(name, known)
            message = f"{script.name} has no flag {name}"
            yield unknown_flag.at(span, message, hint, replacement=meant, severity=severity)
        yield from _missing(step, script, words, flags.flags)


def _missing(step: _Step, script: Path, words: list[Word], flags: Mapping[str, Flag]) -> Iterator[Diagnostic]:
    if any(not word.is_plain or (word.text.startswith("${{") and not _follows_flag(word, words)) for word in words):
        return
    given = {word.text.partition("=")[0] for word in words}
    for flag in dict.fromkeys(flags.values()):
        if flag.is_required and flag.names and not given & set(flag.names):
            if any(only_close(word, flag.names) for word in given):
                continue  # reported as an unknown flag
            place = step.task.entries.get("program_arguments") or step.task.entries["entry_script"]
            message = f"{script.name} requires {flag.names[0]}, and the step does not pass it"
            related = [Related(Span(flag.file, flag.line, 1, flag.line, 2), f"{flag.names[0]} is declared here")]
            yield missing_flag.at(place.key.span, message, f"Add `{flag.names[0]} …` to program_arguments.", related)


def _follows_flag(word: Word, words: list[Word]) -> bool:
    before = [other for other in words if other.end <= word.start]
    return bool(before) and before[-1].text.startswith("-")


@rule(
    "file",
    "AML322",
    "mini-batches",
    "warning",
    summary="What a parallel step splits, or how, does not fit its input.",
    why="`input_data` names an input that is data. Of files, `mini_batch_size` is how many make a mini-batch; of a "
    "table it is a size, such as 10kb. `append_row_to` names an output that is a file.",
    example="""\
type: parallel
name: score
inputs:
  images: {type: uri_folder}
input_data: ${{inputs.images}}
mini_batch_size: ‹10kb⇒"10"›
task:
  type: run_function
  code: ./src
  entry_script: score.py
  environment: azureml:torch:3
=== src/score.py
def init():
    pass


def run(mini_batch):
    return mini_batch
""",
)
def mini_batches(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for step in _steps(file):
        data, size = step.node.get("input_data"), step.node.get("mini_batch_size")
        binding = only_binding(data.text) if data is not None and data.is_text else None
        kind = step.port_type(".".join(binding.path[1:])) if binding is not None else ""
        if kind in PARAMETER_TYPES and data is not None:
            message = f"a parallel step splits data, and this input is a {kind}"
            yield mini_batches.at(data.span, message, "Name an input of type uri_folder or mltable.", severity="error")
        if size is not None and kind in _FILES and _BYTES.fullmatch(size.text):
            message = f"of files, mini_batch_size is a number, not a size such as {size.text}"
            yield mini_batches.at(size.span, message, 'Write `mini_batch_size: "10"`.')
        yield from _appends(step)


def _appends(step: _Step) -> Iterator[Diagnostic]:
    target = step.task.get("append_row_to")
    binding = only_binding(target.text) if target is not None and target.is_text else None
    if target is None or binding is None:
        return
    kind = step.port_type(".".join(binding.path[1:]), "outputs")
    if binding.path[0] == "inputs":
        message = "rows are appended to an output, and this is an input"
        yield mini_batches.at(target.span, message, "Write ${{outputs.NAME}}.", severity="error")
    elif binding.path[0] == "outputs" and kind == "uri_folder":
        message = "rows are appended to a file, and this output is a uri_folder"
        yield mini_batches.at(target.span, message, "Give the output `type: uri_file`.")
