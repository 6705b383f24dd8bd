"""What scripts do with their arguments, compared with the flags they declare and the types and modes of ports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from trainyard.lint.checks import LintContext, check, known_words
from trainyard.lint.scripts.data_reads import Read, argument_holders, destination
from trainyard.lint.scripts.syntax import Syntax, dotted, line_of
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import only_close, slips
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Node
from trainyard.spec.expressions import bindings_of_value, only_binding
from trainyard.spec.model import Port
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import CalledScript

# A custom model may be either.
_FOLDERS = frozenset({"uri_folder", "mltable", "mlflow_model"})
# What follows a path in a command and names something beneath it; `/..` does not.
_BENEATH = regex(r"[\"']?(/(?!\.\.)[\w.$*{][^\s\"';|&)]*)")


PORT_READ_OTHERWISE = Rule("AML510", "port-read-otherwise", "warning").explained(
    summary="A script opens a folder, or looks into a file; or a command names a path beneath a file.",
    why="A `uri_file` is the path of one file, and a `uri_folder` of a folder. Only reported for what argparse passes "
    "on as it is, and not if the script asks which of the two it got.",
)


@check("command")
def _port_read_otherwise(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, port, side, reads in _data_of_scripts(command, context):
        for read in reads:
            if side == "inputs" and port.type == "uri_file" and read.what == "folder":
                is_written, expected = "a file", "a folder"
            elif port.type in _FOLDERS and read.what == "file":
                is_written, expected = "a folder", "a file"
            else:
                continue
            kind = command.node.find(side, port.name, "type")
            message = f"'{port.name}' is {is_written}, and {called.name} takes it for {expected}"
            hint = "Give it the type uri_folder." if expected == "a folder" else "Give it the type uri_file."
            span = kind.span if kind is not None else port.key_span
            yield PORT_READ_OTHERWISE.at(span, message, hint, [_happens_here(read)])
            break


@check("command")
def _path_beneath_a_file(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """`${{outputs.model}}/model.pt`, where the output is a file itself."""
    ports = {"inputs": command.component.inputs, "outputs": command.component.outputs}
    for binding in bindings_of_value(command.text):
        port = ports.get(binding.path[0], {}).get(".".join(binding.path[1:]))
        beneath = _BENEATH.match(command.text, binding.end)
        if port is not None and port.type == "uri_file" and beneath is not None:
            message = f"'{port.name}' is a file, and '{beneath[1]}' would be beneath it"
            hint = f"Remove '{beneath[1]}', or give '{port.name}' the type uri_folder."
            yield PORT_READ_OTHERWISE.at(command.span(*beneath.span(1)), message, hint, [port.declared])


DIRECT_READ_AS_PATH = Rule("AML511", "direct-read-as-path", "warning").explained(
    summary="A script opens an input or output of `mode: direct` as if it were on the disk.",
    why="With `direct` nothing is mounted: the script gets an address (`azureml://…`), which only fsspec, Spark and "
    "the like can open.",
)


@check("command")
def _direct_read_as_path(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    yield from _opened_with_direct(command, command.node, context)


@check("pipeline")
def _direct_in_jobs(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """What jobs pass to their components with `mode: direct`."""
    for job, command in context.commands_of(pipeline):
        yield from _opened_with_direct(command, job.node, context)


def _opened_with_direct(command: ParsedCommand, gives_modes: Node, context: LintContext) -> Iterator[Diagnostic]:
    """Report inputs that get `mode: direct` in a node and that the command's scripts open as paths."""
    for called, port, side, reads in _data_of_scripts(command, context):
        mode = gives_modes.find_text(side, port.name, "mode")
        is_direct = mode is not None and mode.text.lower() == "direct"
        opened = next((read for read in reads if read.on_disk), None)
        if mode is not None and is_direct and opened is not None:
            message = f"'{port.name}' is an address with 'mode: direct', and {called.name} opens it as a path"
            hint = "Use ro_mount or download." if side == "inputs" else "Use rw_mount or upload."
            yield DIRECT_READ_AS_PATH.at(mode.span, message, hint, [_happens_here(opened)])


def _data_of_scripts(
    command: ParsedCommand, context: LintContext
) -> Iterator[tuple[CalledScript, Port, str, tuple[Read, ...]]]:
    """The ports with data that a command passes to flags of its scripts, and how these read them."""
    for called in context.calls_of(command):
        for word, follower in pairwise(called.call.arguments):
            binding = only_binding(follower.text) if word.text.startswith("-") else None
            if binding is None or called.file is None or binding.path[0] not in ("inputs", "outputs"):
                continue
            side, name = binding.path[0], ".".join(binding.path[1:])
            ports = command.component.inputs if side == "inputs" else command.component.outputs
            port = ports.get(name)
            reads = context.reads_of(called.file).get(word.text, ()) if port is not None else ()
            if port is not None and reads:
                yield called, port, side, reads


def _happens_here(read: Read) -> Related:
    return line_of(read.file, read.line, f"{read.call} is here" if read.call != "/" else "here")


_SHORTEST_NAME = 3
_ADD_ATTRIBUTES: frozenset[str] = frozenset(known_words("adds_attributes"))


UNKNOWN_ARGUMENT = Rule("AML515", "unknown-argument", "error").explained(
    summary="A script reads an argument that it does not declare.",
    why="`args.epoch` of a parser with `--epochs` is an AttributeError, maybe after hours. Only scripts with one "
    "argparse parser are looked at, and only where nothing can have added the attribute.",
)


@check("command")
def _unknown_argument(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, file, syntax in context.scripts_of(command):
        if context.flags_of(file, called.root) is not None:
            yield from _unknown(called, file, syntax)


def _unknown(called: CalledScript, file: Path, syntax: Syntax) -> Iterator[Diagnostic]:
    declared, holders = _declared(syntax), argument_holders(syntax)
    if declared is None or not holders:
        return
    for node in syntax.of(ast.Attribute):
        is_held = isinstance(node.value, ast.Name) and node.value.id in holders
        if not is_held or node.attr in declared or node.attr.startswith("_"):
            continue
        meant = _meant(node.attr, declared)
        if meant is not None or not _is_given_away(syntax, holders):
            message = f"{called.name} reads {ast.unparse(node)}, and declares no such argument"
            here = Related(Span(file, node.lineno, node.col_offset + 1, node.lineno, node.col_offset + 2), "here")
            hint = f"Did you mean '{meant}'?" if meant is not None else f"Declare it, or remove '.{node.attr}'."
            yield UNKNOWN_ARGUMENT.at(called.place, message, hint, [here])


def _meant(name: str, declared: set[str]) -> str | None:
    """The argument that a name is meant to be."""
    if len(name) < _SHORTEST_NAME:
        return None
    return only_close(name, declared) or next((known for known in sorted(declared) if slips(name, known) == 1), None)


def _is_given_away(syntax: Syntax, holders: set[str]) -> bool:
    """Whether arguments are passed as a whole to what is not of this script, and may add some."""
    own = {function.name for function in syntax.functions} | {"print"}
    calls = (call for call in syntax.calls if dotted(call.func, {}) not in own)
    given = (each for call in calls for each in (*call.args, *(word.value for word in call.keywords)))
    return any(isinstance(each, ast.Name) and each.id in holders for each in given)


def _declared(syntax: Syntax) -> set[str] | None:
    """The attributes that the only parser of a script gives; None if there may be others."""
    if any(node.id in _ADD_ATTRIBUTES for node in syntax.of(ast.Name)):
        return None
    if any(node.attr in _ADD_ATTRIBUTES for node in syntax.of(ast.Attribute)):
        return None
    if sum(dotted(call.func, syntax.imported) == "argparse.ArgumentParser" for call in syntax.calls) != 1:
        return None
    # What a script asks for with hasattr or sets anywhere is known to it.
    found = {str(node.value) for node in syntax.of(ast.Constant) if isinstance(node.value, str)}
    found = {text for text in found if text.isidentifier()}
    found |= {node.attr for node in syntax.of(ast.Attribute) if not isinstance(node.ctx, ast.Load)}
    # A `dest` of add_subparsers is one of these strings too.
    adds = [call for call in syntax.calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    names = [destination(call) for call in adds]
    return None if None in names else found | set(filter(None, names))
