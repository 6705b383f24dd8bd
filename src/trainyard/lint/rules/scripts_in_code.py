"""The scripts and modules that a command runs: they are in the uploaded code."""

from __future__ import annotations

import os
from collections.abc import Iterator

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.project_files import names_in
from trainyard.resources import PACKAGE
from trainyard.settings.suggestions import closest, only_close
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.rules.references import SCRIPT_NOT_FOUND
from trainyard.spec.script_steps import python_files
from trainyard.spec.shell_words import CalledScript, archive_on_path


@check("command")
def _script_not_found(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called in _missing(command, context):
        script, names = called.call.script, python_files(called.root)
        if called.call.is_module or not names or command.component.additional_includes:
            continue
        meant = closest(script.text.removeprefix("./"), names)
        hint = (
            f"Did you mean '{meant}'?" if meant is not None else f"It contains other scripts: {', '.join(names[:3])}."
        )
        message = f"the code folder '{called.root.name}' contains no '{script.text}'"
        yield SCRIPT_NOT_FOUND.at(called.span(script), message, hint, replacement=only_close(script.text, names))


SCRIPT_LEFT_OUT = Rule("AML407", "script-left-out", "error").explained(
    summary="The script, or the archive it is in, is excluded from the uploaded code by .amlignore or .gitignore.",
    why="It is in the folder but not uploaded, so the job does not find it. `.amlignore` takes precedence over "
    "`.gitignore`.",
    example="""\
type: command
name: train
code: ./src
command: python ‸train.py
environment: azureml:torch:3
=== src/train.py
print("training")
=== src/.amlignore
‹*.py
⇒notebooks/
›""",
)


@check("command")
def _script_left_out(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called in context.calls_of(command):
        if called.file is not None and context.is_left_out(called.root, called.file):
            message = f"'{called.call.script.text}' is not uploaded: the ignore file of the code excludes it"
            hint = "Add a `!…` line for it, or narrow the pattern."
            yield SCRIPT_LEFT_OUT.at(called.place, message, hint)
    code, archive = command.component.code, archive_on_path(command.text)
    if code is not None and archive is not None and context.is_left_out(code, code / archive.text):
        message = f"'{archive.text}' is not uploaded: the ignore file of the code excludes it"
        hint = "Add a `!…` line for it, or narrow the pattern."
        yield SCRIPT_LEFT_OUT.at(command.span(archive.start, archive.end), message, hint)


MODULE_NOT_FOUND = Rule("AML408", "module-not-found", "error").explained(
    summary="The package in the code has no such module.",
    why="Only reported if the package is in the code; one that is installed in the environment cannot be checked.",
    example="""\
type: command
name: train
code: ./src
command: python -m digits.‹trian⇒train›
environment: azureml:torch:3
=== src/digits/__init__.py
=== src/digits/train.py
print("training")
""".replace("digits.‹", "‸digits.‹"),
)


@check("command")
def _module_not_found(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called in _missing(command, context):
        script = called.call.script
        names = script.text.split(".")
        root = PACKAGE.parent if names[0] == PACKAGE.name and PACKAGE in called.includes else called.root
        package, folder = root / names[0], root.joinpath(*names[:-1])
        if not called.call.is_module:
            continue
        if script.text.endswith(".py") and os.path.isfile(called.root / script.text):
            message = f"-m takes a module, but '{script.text}' is a file"
            yield MODULE_NOT_FOUND.at(called.span(script), message, f"Write `python {script.text}`.")
        elif len(names) > 1 and any(name.endswith(".py") for name in names_in(package)):
            siblings = [name.removesuffix(".py") for name in names_in(folder) if name.endswith(".py")]
            message = f"the package '{names[0]}' in the code has no module '{'.'.join(names[1:])}'"
            meant = closest(names[-1], siblings)
            hint = f"Did you mean '{'.'.join([*names[:-1], meant])}'?" if meant else ""
            yield MODULE_NOT_FOUND.at(called.span(script), message, hint)


def _missing(command: ParsedCommand, context: LintContext) -> Iterator[CalledScript]:
    """The calls whose script should be in the code, and is not."""
    for called in context.calls_of(command):
        script = called.call.script
        is_certain = not script.text.startswith("/") and not called.call.follows_others and script.is_plain
        if called.file is None and is_certain and "${{" not in script.text:
            yield called
