"""What is started with settings of its own: the scripts of parallel and Spark steps, and the trials of sweeps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from trainyard.project_files import is_within_root
from trainyard.settings.suggestions import close_match, did_you_mean
from trainyard.spec.bindings import check_command
from trainyard.spec.documents import Node
from trainyard.spec.environments import read_environment
from trainyard.spec.expressions import ExpressionError, bindings_in
from trainyard.spec.model import Port
from trainyard.spec.parsed import Reading, is_code_of_this_machine
from trainyard.spec.rules.bindings import UNKNOWN_COMMAND_PORT
from trainyard.spec.rules.references import CODE_NOT_FOUND, SCRIPT_NOT_FOUND

# A folder of code may hold a whole data set.
_MOST_FILES_LOOKED_AT = 2000

# Where parallel and Spark steps write what their script is called with.
_ARGUMENT_PLACES = (("task", "program_arguments"), ("task", "append_row_to"), ("input_data",), ("args",))


def check_files(node: Node, reading: Reading) -> None:
    """Report missing code and environment files of a step or of its task."""
    for holder in (node, node.get("task")):
        if holder is None or not holder.is_mapping:
            continue
        read_environment(holder.get("environment"), reading)
        code = holder.get("code")
        if code is not None and code.is_text and is_code_of_this_machine(code, reading):
            folder = reading.existing(code, CODE_NOT_FOUND, "the code")
            if folder is not None and os.path.isdir(folder):
                _check_script(holder, folder, reading)


def _check_script(holder: Node, folder: Path, reading: Reading) -> None:
    """Report a step's script that its code does not contain."""
    entry = holder.get("entry")
    script = entry.get("file") if entry is not None and entry.is_mapping else holder.get("entry_script")
    if script is None or not script.is_text or "${{" in script.text:
        return
    if script_file(folder, script.text) is not None:
        return
    names = python_files(folder)
    if names:
        message = f"the code '{folder.name}' contains no '{script.text}'"
        reading.findings.add(script.span, SCRIPT_NOT_FOUND, message, close_match(script.text, names))


def script_file(folder: Path, script: str) -> Path | None:
    """The file that a step's script means: its path, or a module with dots, whose imports may then be relative."""
    try:
        module = folder / (script.replace(".", "/") + ".py")
        return next((file for file in (folder / script, module) if os.path.isfile(file)), None)
    except ValueError:
        return None


def python_files(folder: Path) -> list[str]:
    """The Python files under a folder, by their relative path; of a large folder only the first ones."""
    found: list[str] = []
    looked_at = 0
    for parent, folders, names in os.walk(folder) if is_within_root(folder) else ():
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        looked_at += len(names) + 1
        relative = os.path.relpath(parent, folder)
        found += [os.path.normpath(os.path.join(relative, name)) for name in sorted(names) if name.endswith(".py")]
        if looked_at > _MOST_FILES_LOOKED_AT:
            break
    return found


def check_arguments(node: Node, inputs: Mapping[str, Port], outputs: Mapping[str, Port], reading: Reading) -> None:
    """Report bindings of a script's arguments that name no port of the step."""
    for place in _ARGUMENT_PLACES:
        found: Node | None = node
        for key in place:
            found = found.get(key) if found is not None and found.is_mapping else None
        if found is not None and found.is_text:
            check_command(found, inputs, outputs, reading)


def check_search_space(trial: Node, sweep: Node, reading: Reading) -> None:
    """Report `${{search_space.NAME}}` in a trial's command that the sweep does not search."""
    command, space = trial.get("command"), sweep.get("search_space")
    if command is None or not command.is_text or space is None or not space.is_mapping:
        return
    try:
        bindings = bindings_in(command.text)
    except ExpressionError:
        return
    for binding in bindings:
        name = ".".join(binding.path[1:])
        if binding.path[0] == "search_space" and name not in space.entries:
            span = reading.document.span_within(command, *binding.part_offsets(min(1, len(binding.path) - 1)))
            message = f"the search space has no '{name}'"
            reading.findings.add(span, UNKNOWN_COMMAND_PORT, message, did_you_mean(name, space.entries))
