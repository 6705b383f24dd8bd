"""What scripts do with the data of ports, compared with the types and modes of these."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.lint.scripts.data_reads import Read
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Node
from trainyard.spec.expressions import only_binding
from trainyard.spec.model import Component, Port
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import CalledScript

# A custom model may be either.
_FOLDERS = frozenset({"uri_folder", "mltable", "mlflow_model"})
_COUNTS_FILES = """\
=== src/count.py
import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("--images")
args = parser.parse_args()
print(len(os.listdir(args.images)))
"""


PORT_READ_OTHERWISE = Rule("AML510", "port-read-otherwise", "warning").explained(
    summary="A script opens a folder, or looks into a file.",
    why="A `uri_file` is the path of one file, and a `uri_folder` of a folder. Only reported for what argparse passes "
    "on as it is, and not if the script asks which of the two it got.",
    example="""\
type: command
name: count
code: ./src
command: python count.py --images ${{inputs.images}}
environment: azureml:python:3
inputs:
  images: {type: ‸‹uri_file⇒uri_folder›}
"""
    + _COUNTS_FILES,
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


DIRECT_READ_AS_PATH = Rule("AML511", "direct-read-as-path", "warning").explained(
    summary="A script opens an input of `mode: direct` as if it were on the disk.",
    why="With `direct` nothing is mounted: the script gets an address (`azureml://…`), which only fsspec, Spark and "
    "the like can open.",
    example="""\
type: command
name: count
code: ./src
command: python count.py --images ${{inputs.images}}
environment: azureml:python:3
inputs:
  images: {type: uri_folder, mode: ‸‹direct⇒ro_mount›}
"""
    + _COUNTS_FILES,
)


@check("command")
def _direct_read_as_path(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    yield from _opened_with_direct(command, command.node, context)


@check("pipeline")
def _direct_in_jobs(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """What jobs pass to their components with `mode: direct`."""
    for job in pipeline.scope.jobs.values():
        component = job.component
        command = context.command_of(component) if isinstance(component, Component) else None
        if command is not None and not job.has_own_command:
            yield from _opened_with_direct(command, job.node, context)


def _opened_with_direct(command: ParsedCommand, gives_modes: Node, context: LintContext) -> Iterator[Diagnostic]:
    """Report inputs that get `mode: direct` in a node and that the command's scripts open as paths."""
    for called, port, side, reads in _data_of_scripts(command, context):
        mode = gives_modes.find(side, port.name, "mode")
        is_direct = mode is not None and mode.is_text and mode.text.lower() == "direct"
        opened = next((read for read in reads if read.on_disk), None)
        if side == "inputs" and mode is not None and is_direct and opened is not None:
            message = f"'{port.name}' is an address with 'mode: direct', and {called.name} opens it as a path"
            yield DIRECT_READ_AS_PATH.at(mode.span, message, "Use ro_mount or download.", [_happens_here(opened)])


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
    return Related(Span(read.file, read.line, 1, read.line, 2), f"{read.call} is here" if read.call != "/" else "here")
