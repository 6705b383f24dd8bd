"""What a command's scripts import, and whether that is uploaded with them."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from trainyard.lint.checks import rule
from trainyard.lint.context import LintContext
from trainyard.lint.scripts.syntax import parse
from trainyard.lint.shell_words import CalledScript
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.parsed import ParsedCommand

# Anything of these may bring modules along from elsewhere.
_FINDS_MODULES = re.compile(r"PYTHONPATH|sys\.path|pip3? install|setup\.py|\bcd ")
_LEVELS_UP = 2
# A folder beside the code with the name of a package that is installed is not what is imported.
_INSTALLED = frozenset(
    {"torch", "numpy", "pandas", "datasets", "transformers", "tensorflow", "sklearn", "mlflow", "azureml", "azure"}
    | {"evaluate", "accelerate", "deepspeed", "lightning", "keras", "scipy", "pytest", "tests", "wandb", "nltk"}
)


@rule(
    "command",
    "AML508",
    "module-outside-code",
    "warning",
    summary="A script imports a module that is beside the code folder, not in it.",
    why="Only `code` and `additional_includes` are uploaded. It works on this machine if the module's folder is the "
    "current one; in the job the import fails.",
    example="""\
type: command
name: train
code: ./src/train
command: python ‸train.py
environment: azureml:torch:3
=== src/train/train.py
import losses

print(losses)
=== src/‹⇒train/›losses.py
print("losses")
""",
)
def module_outside_code(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    if _FINDS_MODULES.search(command.text) or "PYTHONPATH" in command.reading.document.text:
        return
    for called in context.calls_of(command):
        tree = parse(called.file) if called.file is not None else None
        if called.file is None or tree is None or _FINDS_MODULES.search(called.file.read_text(errors="replace")):
            continue
        for module, line in _imported_at_once(tree):
            found = _beside(module, called)
            if found is not None:
                message = f"{called.name} imports '{module}', which is not in the code but beside it"
                hint = f"Move it into '{called.root.name}', or add it to `additional_includes`."
                related = [
                    Related(Span(called.file, line, 1, line, 2), "it is imported here"),
                    Related(Span(found), "it is here"),
                ]
                yield module_outside_code.at(called.span(called.call.script), message, hint, related)


def _imported_at_once(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The modules that a script imports whenever it runs, not within a function, an `if` or a `try`."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0], node.lineno


def _beside(module: str, called: CalledScript) -> Path | None:
    """Where a module is above the code folder; None if it is in the code, installed, or nowhere near."""
    assert called.file is not None
    if module in sys.stdlib_module_names or module in _INSTALLED:
        return None
    includes = called.command.component.additional_includes
    inside = (called.root, called.file.parent, *(include.parent for include in includes), *includes)
    if any(_module_in(folder, module) is not None for folder in inside):
        return None
    above = called.root.parents[:_LEVELS_UP]
    return next((found for folder in above if (found := _module_in(folder, module)) is not None), None)


def _module_in(folder: Path, module: str) -> Path | None:
    package = folder / module / "__init__.py"
    return next((file for file in (folder / f"{module}.py", package) if file.is_file()), None)
