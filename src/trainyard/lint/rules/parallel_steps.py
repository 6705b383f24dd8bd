"""Parallel steps: the entry script, what is split into mini-batches, and how much of it makes one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainyard.lint.checks import LintContext, LintedFile, check
from trainyard.lint.rules.command_ports import UNUSED_INPUT, only_orders
from trainyard.lint.script_calls import ScriptStep, script_steps
from trainyard.lint.scripts.syntax import line_of, parse, walk
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import did_you_mean, only_close
from trainyard.spec.diagnostic import Diagnostic, Severity, Span
from trainyard.spec.documents import shorten
from trainyard.spec.expressions import bindings_of_value, name_bound, only_binding
from trainyard.spec.model import PARAMETER_TYPES
from trainyard.spec.rule import Rule
from trainyard.spec.rules import IGNORED_KEY, MISSING_KEY

_BYTES = regex(r"[0-9]+(?:[kKmMgG][bB])+")
_FILES = ("uri_folder", "uri_file")
_OTHER_KEYS_OF_TASKS = frozenset({"type", "code", "environment", "program_arguments", "append_row_to"})
# https://learn.microsoft.com/azure/machine-learning/how-to-use-parallel-job-in-pipeline
_CONTEXT = "mini_batch_context"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _steps(file: LintedFile) -> Iterator[ScriptStep]:
    return (step for step in script_steps(file) if not step.is_spark)


PARALLEL_ENTRY = Rule("AML506", "parallel-entry", "error", is_let_pass=True).explained(
    summary="The entry script of a parallel step lacks `init()` or `run(mini_batch)`, or returns nothing.",
    why="The step imports the script, calls `init()` once in each process, and `run(mini_batch)` for each mini-batch. "
    "It counts what `run` returns, a list or a DataFrame, as the inputs that succeeded. Azure ML's client does not "
    "look into it. Published steps work without `init()`: that is a note.",
)


@check("file")
def _parallel_entry(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for step in _steps(file):
        entry, script = step.entry, step.script
        if entry is None or script is None:
            continue
        place = entry.value.span
        found = wrong_entry_script(PARALLEL_ENTRY, place, script, "mini_batch", "mini-batch", without_init="info")
        yield from found or without_results(PARALLEL_ENTRY, place, script)


def wrong_entry_script(
    rule: Rule, span: Span, script: Path, argument: str, what: str, *, without_init: Severity = "warning"
) -> list[Diagnostic]:
    """Return what is wrong with a script that Azure ML imports to call `init()` once and `run()` for each `what`."""
    defined = _defined_in(script)
    if defined is None:
        return []
    run = defined.get("run", ())
    if not run:
        message = f"{script.name} has no function run({argument}), which is called for each {what}"
        hint = did_you_mean("run", [name for name in defined if only_close(name, ["run"])])
        return [rule.at(span, message, hint or f"Write `def run({argument}):`.")]
    if all(isinstance(each, _FUNCTIONS) and not _takes_one(each) for each in run):
        related = [line_of(script, run[0], "it is defined here")]
        return [rule.at(span, f"run() of {script.name} does not take the {what} alone", "", related)]
    if "init" not in defined:
        message = f"{script.name} has no function init(), which is called first"
        return [rule.at(span, message, "Write `def init():`.", severity=without_init)]
    return []


def without_results(rule: Rule, span: Span, script: Path) -> Iterator[Diagnostic]:
    """Yield that `run()` returns nothing for its mini-batch."""
    run = (_defined_in(script) or {}).get("run", ())
    if run and all(isinstance(each, _FUNCTIONS) and _returns_nothing(each) for each in run):
        message = f"run() of {script.name} returns nothing; the step counts what it returns"
        related = [line_of(script, run[0], "it is defined here")]
        hint = "Return a list or a DataFrame, an item for each input."
        yield rule.at(span, message, hint, related, severity="warning")


def _defined_in(script: Path) -> Mapping[str, list[ast.AST]] | None:
    """What a module defines by name, also beneath `if` and `try`; None if it cannot be read or imports `*`."""
    syntax = parse(script)
    return None if syntax is None or "*" in syntax.bound else syntax.bound


def _returns_nothing(function: ast.AST) -> bool:
    """Whether a function does something, and returns no value wherever it ends."""
    assert isinstance(function, _FUNCTIONS)
    nodes = [node for statement in function.body for node in walk(statement)]
    values = (node for node in nodes if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)))
    does_something = any(isinstance(node, ast.Call) for node in nodes)
    raises = any(isinstance(node, ast.Raise) for node in function.body)
    return does_something and not raises and all(node.value is None for node in values)


def _takes_one(function: ast.AST) -> bool:
    """Whether a function can be called with a single argument, and Azure ML's context of the mini-batch if it asks."""
    assert isinstance(function, _FUNCTIONS)
    arguments = function.args
    taken = len(arguments.posonlyargs) + len(arguments.args)
    needed = taken - len(arguments.defaults) - any(each.arg == _CONTEXT for each in arguments.args[1:])
    return (bool(taken) or arguments.vararg is not None) and needed <= 1


MINI_BATCHES = Rule("AML322", "mini-batches", "warning").explained(
    summary="What a parallel step splits, or how, does not fit its input.",
    why="`input_data` names an input that is data. For files, `mini_batch_size` is how many make a mini-batch; for a "
    "table it is a size, such as 10kb. `append_row_to` names an output that is a file.",
)


@check("file")
def _mini_batches(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    for step in _steps(file):
        data, size = step.node.get("input_data"), step.node.get("mini_batch_size")
        bound = name_bound(data.text, "inputs") if data is not None else None
        kind = step.port_type(bound) if bound is not None else ""
        if kind in PARAMETER_TYPES and data is not None:
            message = f"a parallel step splits data, and this input is a {kind}"
            yield MINI_BATCHES.at(data.span, message, "Name an input of type uri_folder or mltable.", severity="error")
        if size is not None and kind in _FILES and _BYTES.fullmatch(size.text):
            message = f"for files, mini_batch_size is a number, not a size such as {size.text}"
            yield MINI_BATCHES.at(size.span, message, 'Write `mini_batch_size: "10"`.')
        keys = step.node.entries.get("partition_keys")
        if size is not None and keys is not None and keys.value.items:
            message = "'mini_batch_size' has no effect: the columns of 'partition_keys' make the mini-batches"
            span = step.node.key_span("mini_batch_size")
            yield IGNORED_KEY.at(span, message, "Remove one of them.", severity="warning")
        # Any other key stands for the missing one, and is reported.
        if step.entry is None and len(step.task.entries) > 1 and step.task.entries.keys() <= _OTHER_KEYS_OF_TASKS:
            message = "there is no 'entry_script', which the step imports"
            span = step.node.key_span("task")
            yield MISSING_KEY.at(span, message, "Write `entry_script: score.py`.", severity="warning")
        yield from _appends(step)
        if step.script is not None and not context.reads_variables(step.script):
            yield from _unused_inputs(step)


def _unused_inputs(step: ScriptStep) -> Iterator[Diagnostic]:
    """Inputs that a parallel step neither splits nor passes to its script."""
    settings = [entry.value.data for key, entry in step.node.entries.items() if key not in ("inputs", "outputs")]
    used = {binding.name_in("inputs") for binding in bindings_of_value(settings)}
    for name, entry in step.node.entries_of("inputs").items():
        if name not in used and not only_orders(name, entry.value.word("description")):
            message = f"the step neither splits the input '{name}' nor passes it to the script"
            hint = f"Put ${{{{inputs.{name}}}}} into 'program_arguments', or remove '{name}'."
            yield UNUSED_INPUT.at(entry.key.span, message, hint)


def _appends(step: ScriptStep) -> Iterator[Diagnostic]:
    target = step.task.find_text("append_row_to")
    binding = only_binding(target.text) if target is not None else None
    if target is not None and "${{" not in target.text and target.text:
        message = f"rows are appended to an output, and '{shorten(target.text)}' is a plain string"
        outputs = list(step.node.entries_of("outputs"))
        meant = target.text.removeprefix("outputs.")
        name = meant if meant in outputs else outputs[0] if len(outputs) == 1 else "NAME"
        yield MINI_BATCHES.at(target.span, message, f"Write ${{{{outputs.{name}}}}}.", severity="error")
    if target is None or binding is None:
        return
    kind = step.port_type(".".join(binding.path[1:]), "outputs")
    if binding.path[0] == "inputs":
        message = "rows are appended to an output, and this is an input"
        yield MINI_BATCHES.at(target.span, message, "Write ${{outputs.NAME}}.", severity="error")
    elif binding.path[0] == "outputs" and kind == "uri_folder":
        message = "rows are appended to a file, and this output is a uri_folder"
        yield MINI_BATCHES.at(target.span, message, "Give the output `type: uri_file`.")
