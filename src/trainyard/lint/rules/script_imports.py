"""What a command's scripts import, and whether their code or environment has that."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from trainyard.catalogue.python_packages import known_module, modules_of, package_of
from trainyard.lint.checks import check
from trainyard.lint.conda import conda_of, packages_of
from trainyard.lint.context import LintContext
from trainyard.lint.scripts.imports import Import, all_imports, imports_at_once, module_in
from trainyard.lint.scripts.syntax import parse
from trainyard.project_files import read_text
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError
from trainyard.spec.documents import Node
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import CalledScript, without_archive

# Anything of these may bring modules along from elsewhere.
_FINDS_MODULES = re.compile(r"PYTHONPATH|sys\.path|pip3? install|setup\.py|\bcd ")
# `azureml:NAME:VERSION` or `azureml:NAME@latest`.
_REGISTERED = re.compile(r"azureml:([^:@/]+)(?::([^:@/]+)|@latest)")
_LEVELS_UP = 2
# A folder beside the code with the name of a package that is installed is not what is imported.
_INSTALLED = frozenset(
    {"torch", "numpy", "pandas", "datasets", "transformers", "tensorflow", "sklearn", "mlflow", "azureml", "azure"}
    | {"evaluate", "accelerate", "deepspeed", "lightning", "keras", "scipy", "pytest", "tests", "wandb", "nltk"}
)


MODULE_OUTSIDE_CODE = Rule("AML508", "module-outside-code", "warning").explained(
    summary="A script imports a module that is beside the code folder, or the code folder itself.",
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


@check("command")
def _module_outside_code(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called in _decidable_calls(command, context):
        assert called.file is not None
        syntax = parse(called.file)
        for each in imports_at_once(syntax, called.file) if syntax is not None else ():
            module = each.path.split(".")[0]
            if _is_code_folder(each.path, called):
                message = f"{called.name} imports '{each.path}', but the content of '{module}' is uploaded without it"
                inner = each.path.partition(".")[2].split(".")[0]
                hint = f"Import '{inner}' instead, or set `code` to the folder above."
                yield MODULE_OUTSIDE_CODE.at(called.place, message, hint, [_imported_here(each)])
                continue
            found = _beside(module, called)
            if found is not None:
                message = f"{called.name} imports '{module}', which is not in the code but beside it"
                hint = f"Move it into '{called.root.name}', or add it to `additional_includes`."
                related = [_imported_here(each), Related(Span(found), "it is here")]
                yield MODULE_OUTSIDE_CODE.at(called.place, message, hint, related)


MODULE_NOT_INSTALLED = Rule("AML509", "module-not-installed", "warning").explained(
    summary="A script imports a module that neither its code nor its environment has.",
    why="Azure ML installs the packages of the conda file into an environment of their own: what the image has is not "
    "in it. Only reported if all packages of the conda file are known, with what they require, and for imports that "
    "always run. Curated environments, images and Dockerfiles are not checked.",
    example="""\
type: command
name: train
code: ./src
command: python ‸train.py
environment:
  image: mcr.microsoft.com/azureml/openmpi5.0-ubuntu24.04
  conda_file:
    channels: [conda-forge]
    dependencies: [python=3.11, pip, {pip: [pandas‹⇒, scikit-learn›]}]
=== src/train.py
import pandas
from sklearn.svm import SVC

print(pandas, SVC)
""",
)


@check("command")
def _module_not_installed(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    conda = _conda_of(command, context)
    modules = modules_of_conda(conda) if conda is not None else None
    if conda is None or modules is None:
        return
    for called in _decidable_calls(command, context):
        assert called.file is not None
        folders = _folders(called)
        missing: dict[str, Import] = {}
        for each in all_imports(called.file, folders):
            module = known_module(each.path)
            top = each.path.split(".")[0]
            in_code = any(os.path.isdir(folder / top) or os.path.isfile(folder / f"{top}.py") for folder in folders)
            if module is not None and module not in modules and not in_code:
                missing.setdefault(module, each)
        for module, each in missing.items():
            message = f"{each.file.name} imports '{module}', which the environment does not have"
            hint = f"Add '{package_of(module)}' to its conda file."
            related = [_imported_here(each), Related(conda.span, "the packages of the environment")]
            yield MODULE_NOT_INSTALLED.at(called.place, message, hint, related)


def modules_of_conda(conda: Node) -> frozenset[str] | None:
    """The modules that a conda file brings; None if that cannot be told."""
    names = [package.name for package in packages_of(conda)]
    known = [name for name in names if name is not None]
    return modules_of(known) if names and len(known) == len(names) else None


def _conda_of(command: ParsedCommand, context: LintContext) -> Node | None:
    """The conda file of a command's environment: in place, in a file that it names, or that defines what it names."""
    environment = command.node.get("environment") or command.node.find("task", "environment")
    store = context.computes.store
    if environment is None or environment.is_mapping or not environment.is_text:
        return conda_of(environment, command.reading.file, store)
    if environment.text.startswith("file:"):
        file = command.reading.path(environment.text)
        with contextlib.suppress(SpecError):  # reported where it is named
            return conda_of(store.peek(file).root, file, store)
    match = _REGISTERED.fullmatch(environment.text)
    if match is None:
        return None
    named = context.conda_environments.get(match[1], [])
    defined = [root for root in named if _has_version(root, match[2])]
    return conda_of(defined[0], defined[0].span.file, store) if len(defined) == 1 else None


def _has_version(root: Node, version: str | None) -> bool:
    own = root.get("version")
    return version is None or own is None or own.text == version


def _decidable_calls(command: ParsedCommand, context: LintContext) -> Iterator[CalledScript]:
    """The calls of scripts that find modules in their code and their environment alone."""
    document = command.reading.document.text
    if _FINDS_MODULES.search(without_archive(command.text)) or "PYTHONPATH" in without_archive(document):
        return
    for called in context.calls_of(command):
        if called.file is not None and not _finds_modules(called.file):
            yield called


def _finds_modules(script: Path) -> bool:
    try:
        return _FINDS_MODULES.search(read_text(script, errors="replace")) is not None
    except OSError:
        return True


def _imported_here(each: Import) -> Related:
    return Related(Span(each.file, each.line, 1, each.line, 2), "it is imported here")


def _folders(called: CalledScript) -> tuple[Path, ...]:
    """Where a script finds modules of its own."""
    assert called.file is not None
    includes = called.includes
    return (called.root, called.file.parent, *(include.parent for include in includes), *includes)


def _is_code_folder(path: str, called: CalledScript) -> bool:
    """Whether an import takes the code folder, whose content is uploaded, for a package."""
    module, *rest = path.split(".")
    if module != called.root.name or not rest or module in sys.stdlib_module_names or module in _INSTALLED:
        return False
    if any(os.path.isdir(folder / module) or module_in(folder, module) is not None for folder in _folders(called)):
        return False
    return os.path.isdir(called.root / rest[0]) or os.path.isfile(called.root / f"{rest[0]}.py")


def _beside(module: str, called: CalledScript) -> Path | None:
    """Where a module is above the code folder; None if it is in the code, installed, or nowhere near."""
    if module in sys.stdlib_module_names or module in _INSTALLED:
        return None
    if any(module_in(folder, module) is not None for folder in _folders(called)):
        return None
    above = called.root.parents[:_LEVELS_UP]
    return next((found for folder in above if (found := module_in(folder, module)) is not None), None)
