"""Scripts that end as they start: they cannot be parsed, or import what their own code does not define."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from trainyard.lint.checks import LintedFile, check
from trainyard.lint.context import LintContext
from trainyard.lint.script_steps import script_steps
from trainyard.lint.scripts.imports import module_in
from trainyard.lint.scripts.syntax import Syntax, parse, syntax_error
from trainyard.settings.suggestions import did_you_mean
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import shorten
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import CalledScript

# Any of these may define names that are not written as such.
_DEFINE_NAMES = frozenset({"globals", "exec", "setattr", "__getattr__", "import_module", "modules"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


IMPORT_FAILS = Rule("AML513", "import-fails", "error").explained(
    summary="A script imports a name that the module in its code does not define, or relatively without a package.",
    why="The import fails, after the cluster has started. A script that is started as a file belongs to no package, so "
    "`from .losses import …` fails in it: write `from losses import …`, or start it with `python -m`. Only imports "
    "that always run are looked at, and not in modules that may define names in other ways.",
    example="""\
type: command
name: train
code: ./src
command: python ‸train.py
environment: azureml:torch:3
=== src/train.py
from losses import ‹focal_los⇒focal_loss›

print(focal_loss(1.0))
=== src/losses.py
def focal_loss(probability):
    return 1 - probability
""",
)


@check("command")
def _import_fails(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called in context.calls_of(command):
        syntax = parse(called.file) if called.file is not None else None
        if syntax is not None and called.file is not None:
            yield from _failing(called, called.file, syntax)


def _failing(called: CalledScript, file: Path, syntax: Syntax) -> Iterator[Diagnostic]:
    for node in syntax.of(ast.ImportFrom):
        if node not in syntax.body:
            continue
        here = Related(Span(file, node.lineno, 1, node.lineno, 2), "it is imported here")
        written = f"from {'.' * node.level}{node.module or ''} import {node.names[0].name}"
        if node.level and not called.call.is_module:
            message = f"{called.name} is started as a file, and '{shorten(written)}' works in packages only"
            yield IMPORT_FAILS.at(called.place, message, "Import without the dot, or start it with python -m.", [here])
        elif not node.level and node.module is not None:
            folder = called.root if called.call.is_module else file.parent
            yield from _undefined(called, folder, node, here)


def _undefined(called: CalledScript, folder: Path, node: ast.ImportFrom, here: Related) -> Iterator[Diagnostic]:
    """Names that a module of the code is to have, and has not."""
    assert node.module is not None
    *packages, last = node.module.split(".")
    if (packages or [last])[0] in sys.stdlib_module_names:
        return
    module = module_in(folder.joinpath(*packages), last)
    syntax = parse(module) if module is not None else None
    defined = _defined(syntax) if syntax is not None else None
    if module is None or not defined:
        return
    submodules = {name.removesuffix(".py") for name in os.listdir(module.parent)}
    for alias in node.names:
        if alias.name not in defined and (module.name != "__init__.py" or alias.name not in submodules):
            message = f"{called.name} imports '{alias.name}', which {module.relative_to(folder)} does not define"
            yield IMPORT_FAILS.at(called.place, message, did_you_mean(alias.name, sorted(defined), ""), [here])


def _defined(syntax: Syntax) -> set[str] | None:
    """Every name that a module binds anywhere; None if it may bind others."""
    found = {"*"}
    for node in syntax.nodes:
        if isinstance(node, ast.Name):
            if node.id in _DEFINE_NAMES:
                return None
            if isinstance(node.ctx, ast.Store):
                found.add(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in _DEFINE_NAMES:
            return None
        elif isinstance(node, _DEFINITIONS):
            if node.name in _DEFINE_NAMES:
                return None
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.asname or alias.name.split(".")[0] for alias in node.names}
            if "*" in names:
                return None
            found |= names
    return found if len(found) > 1 else None


SCRIPT_SYNTAX = Rule("AML514", "script-syntax", "warning").explained(
    summary="Python cannot parse the script.",
    why="The job ends at once, after its machine has started. The script is parsed by the Python that lint runs on.",
    example="""\
type: command
name: train
code: ./src
command: python ‸train.py
environment: azureml:torch:3
=== src/train.py
for epoch in range(3)‹⇒:›
    print(epoch)
""",
)


@check("command")
def _script_syntax(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called in context.calls_of(command):
        yield from _unparsable(called)


@check("file")
def _scripts_of_steps(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """The same for the scripts of parallel and Spark steps."""
    for step in script_steps(file.document):
        called, entry = step.call(), step.entry
        if called is not None and entry is not None:
            yield from _unparsable(called._replace(caller=entry.value))


def _unparsable(called: CalledScript) -> Iterator[Diagnostic]:
    error = syntax_error(called.file) if called.file is not None else None
    if error is not None and called.file is not None:
        line = error.lineno or 1
        related = [Related(Span(called.file, line, 1, line, 2), error.msg)]
        message = f"Python {sys.version_info[0]}.{sys.version_info[1]} cannot parse {called.name}: line {line}"
        yield SCRIPT_SYNTAX.at(called.place, message, "", related)
