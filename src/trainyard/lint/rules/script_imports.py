"""The scripts of a command: whether they can be parsed, define their names, and have what they import."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trainyard.catalogue.python_packages import known_module, modules_of, package_of
from trainyard.lint.checks import LintContext, LintedFile, check, known_words, mentions
from trainyard.lint.rules.conda_files import conda_of, packages_of
from trainyard.lint.script_calls import script_steps
from trainyard.lint.scripts.syntax import Syntax, line_of, parse, syntax_error, walk
from trainyard.project_files import modules_in
from trainyard.resources import PACKAGE
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import did_you_mean, misspelt_name
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Node, shorten
from trainyard.spec.other_files import scoring_code
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import CalledScript, without_archive

# Anything of these may bring modules along from elsewhere.
_FINDS_MODULES = regex(r"PYTHONPATH|sys\.path|pip3? install|setup\.py|\bcd ")
# `azureml:NAME:VERSION` or `azureml:NAME@latest`.
_REGISTERED = regex(r"azureml:([^:@/]+)(?::([^:@/]+)|@latest)")
_TRAINER = regex(r"transformers\.(?:Seq2Seq)?Train(?:er|ingArguments)")
# https://github.com/huggingface/transformers/blob/v4.29.0/src/transformers/training_args.py
_FIRST_WITH_ACCELERATE = (4, 29)
_LEAST_VERSION = regex(r"(?<![!<])[=~>]=?\s*(\d+)(?:\.(\d+))?")
_LEVELS_UP = 2
# A folder beside the code with the name of a package that is installed is not what is imported.
_INSTALLED: frozenset[str] = frozenset(known_words("packages_often_installed"))


MODULE_OUTSIDE_CODE = Rule("AML508", "module-outside-code", "warning").explained(
    summary="A script imports a module that is beside the code folder, or the code folder itself.",
    why="Only `code` and `additional_includes` are uploaded. It works on this machine if the module's folder is the "
    "current one; in the job the import fails.",
)


@check("command")
def _module_outside_code(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, file in _decidable_calls(command, context):
        syntax, own = parse(file), modules_in(_folders(called))
        known = sys.stdlib_module_names | _INSTALLED.union(own)
        for each in imports_at_once(syntax, file) if syntax is not None else ():
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
            elif known_module(each.path) is None and module not in known and (meant := _misspelt(module, own)):
                message = f"{called.name} imports '{module}', which its code does not have"
                yield MODULE_NOT_INSTALLED.at(called.place, message, f"Did you mean '{meant}'?", [_imported_here(each)])


def _misspelt(module: str, own: Sequence[str]) -> str | None:
    """The module of the code that is meant. A plural may be another package: `models` beside `model`."""
    meant = misspelt_name(module, own)
    return meant if meant is not None and meant.rstrip("s") != module.rstrip("s") else None


MODULE_NOT_INSTALLED = Rule("AML509", "module-not-installed", "warning").explained(
    summary="A script imports a module that neither its code nor its environment has.",
    why="Azure ML installs the packages of the conda file into an environment of their own: what the image has is not "
    "in it. Only reported if all packages of the conda file are known, with what they require, and for imports that "
    "always run, or for accelerate, which the Trainer of transformers needs. Curated environments, images and "
    "Dockerfiles are not checked. A name that is almost that of a module in the code, and not that of a package, is "
    "reported with any environment.",
)


@check("command")
def _module_not_installed(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    conda = _conda_of(command, context)
    packages = {each.name: each.node.text for each in packages_of(conda)} if conda is not None else {}
    modules = modules_of(filter(None, packages)) if packages and None not in packages else None
    if conda is None or modules is None:
        return
    wanted = packages.get("transformers", "<1")
    least = [(int(major), int(minor or 0)) for major, minor in _LEAST_VERSION.findall(wanted)]
    needs_accelerate = wanted.endswith("transformers") or any(each >= _FIRST_WITH_ACCELERATE for each in least)
    for called, file in _decidable_calls(command, context):
        folders = _folders(called)
        own = modules_in(folders)
        missing: dict[str, Import] = {}
        for each in all_imports(file, folders):
            is_of_trainer = needs_accelerate and _TRAINER.fullmatch(each.path) is not None
            module = "accelerate" if is_of_trainer else known_module(each.path)
            if module is not None and module not in modules and each.path.split(".")[0] not in own:
                missing.setdefault(module, each)
        for module, each in missing.items():
            what = "imports" if each.path.startswith(module) else f"imports {each.path}, and so needs"
            message = f"{each.file.name} {what} '{module}', which the environment does not have"
            hint = f"Add '{package_of(module)}' to its conda file."
            related = [_imported_here(each), Related(conda.span, "the packages of the environment")]
            yield MODULE_NOT_INSTALLED.at(called.place, message, hint, related)


def _conda_of(command: ParsedCommand, context: LintContext) -> Node | None:
    """The conda file of a command's environment: in place, in a file that it names, or that defines what it names."""
    environment = command.node.get("environment") or command.node.find("task", "environment")
    store = context.computes.store
    if environment is None or environment.is_mapping or not environment.is_text:
        return conda_of(environment, command.reading.file, store)
    if environment.text.startswith("file:"):
        file = command.reading.path(environment.text)
        document = store.find(file)
        return conda_of(document.root, file, store) if document is not None else None
    match = _REGISTERED.fullmatch(environment.text)
    if match is None:
        return None
    named = context.assets_defined["environment"].get(match[1], [])
    defined = [root for root in named if root.get("conda_file") is not None]
    defined = [root for root in defined if match[2] is None or root.text_of("version") in ("", match[2])]
    return conda_of(defined[0], defined[0].span.file, store) if len(defined) == 1 else None


def _decidable_calls(command: ParsedCommand, context: LintContext) -> Iterator[tuple[CalledScript, Path]]:
    """The calls, with their files, of scripts that find modules in their code and their environment alone."""
    document = command.reading.document.text
    if _FINDS_MODULES.search(without_archive(command.text)) or "PYTHONPATH" in without_archive(document):
        return
    for called in context.calls_of(command):
        if called.file is not None and not mentions(called.file, _FINDS_MODULES):
            yield called, called.file


def _imported_here(each: Import) -> Related:
    return line_of(each.file, each.line, "it is imported here")


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
    return module not in modules_in(_folders(called)) and rest[0] in modules_in([called.root])


def _beside(module: str, called: CalledScript) -> Path | None:
    """Where a module is above the code folder; None if it is in the code, installed, or nowhere near."""
    if module in sys.stdlib_module_names or module in _INSTALLED:
        return None
    if any(module_in(folder, module) is not None for folder in _folders(called)):
        return None
    above = called.root.parents[:_LEVELS_UP]
    return next((found for folder in above if (found := module_in(folder, module)) is not None), None)


# Any of these may define names that are not written as such.
_DEFINE_NAMES = frozenset({"globals", "exec", "setattr", "__getattr__", "import_module", "modules"})
_TRUSTED = sys.stdlib_module_names | {"trainyard"}
"""Packages whose names are not looked up: Python's own, and this one, whose tests import every module."""


IMPORT_FAILS = Rule("AML513", "import-fails", "error").explained(
    summary="A script imports a name that the module in its code does not define, or relatively without a package.",
    why="The import fails, after the cluster has started. A script that is started as a file belongs to no package, so "
    "`from .losses import …` fails in it: write `from losses import …`, or start it with `python -m`. Only imports "
    "that always run are looked at, and not in modules that may define names in other ways.",
)


@check("command")
def _import_fails(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, file, syntax in context.scripts_of(command):
        for node in syntax.of(ast.ImportFrom):
            if node not in syntax.body:
                continue
            here = Related(Span(file, node.lineno, 1, node.lineno, 2), "it is imported here")
            written = f"from {'.' * node.level}{node.module or ''} import {node.names[0].name}"
            if node.level and not called.call.is_module:
                message = f"{called.name} is started as a file, and '{shorten(written)}' works in packages only"
                hint = "Import without the dot, or start it with python -m."
                yield IMPORT_FAILS.at(called.place, message, hint, [here])
            elif not node.level and node.module is not None:
                folder = called.root if called.call.is_module else file.parent
                yield from _undefined(called, folder, node, here)


def _undefined(called: CalledScript, folder: Path, node: ast.ImportFrom, here: Related) -> Iterator[Diagnostic]:
    """Names that a module of the code is to have, and has not."""
    assert node.module is not None
    *packages, last = node.module.split(".")
    if (packages or [last])[0] in _TRUSTED:
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
    names = {node.id for node in syntax.of(ast.Name)} | {node.attr for node in syntax.of(ast.Attribute)}
    if "*" in syntax.bound or not _DEFINE_NAMES.isdisjoint(names | syntax.bound.keys()):
        return None
    return {"*", *syntax.bound} if syntax.bound else None


SCRIPT_SYNTAX = Rule("AML514", "script-syntax", "warning").explained(
    summary="Python cannot parse the script.",
    why="The job ends at once, after its machine has started. The script is parsed by the Python that lint runs on.",
)


@check("command")
def _scripts_of_commands(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called in context.calls_of(command):
        yield from _wrong_script(called.file, called.place)


@check("file")
def _scripts_of_steps(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """The same for the scripts of parallel and Spark steps and of deployments."""
    found = [(step.script, step.entry.value.span) for step in script_steps(file) if step.entry is not None]
    scoring, folder = file.root.find_text("code_configuration", "scoring_script"), scoring_code(file.root)
    if scoring is not None and folder is not None and scoring.text.endswith(".py"):
        found.append((folder / scoring.text, scoring.span))
    for script, place in found:
        yield from _wrong_script(script, place)


def _wrong_script(script: Path | None, place: Span) -> Iterator[Diagnostic]:
    """What is wrong with a script by itself: Python cannot parse it, or it uses names that nothing defines."""
    if script is None:
        return
    error = syntax_error(script)
    if error is not None:
        line = error.lineno or 1
        related = [line_of(script, line, error.msg)]
        message = f"Python {sys.version_info[0]}.{sys.version_info[1]} cannot parse {script.name}: line {line}"
        yield SCRIPT_SYNTAX.at(place, message, "", related)
    # pyflakes takes 15 ms to import: no command that only reads Trainyard's own steps pays that.
    syntax = parse(script) if script.parent != PACKAGE / "steps" else None
    for name, line in _names_undefined(syntax).items() if syntax is not None else ():
        message = f"{script.name} uses '{name}', which nothing defines there"
        hint = f"Write `global {name}` where it is set." if syntax is not None and name in syntax.bound else ""
        yield UNDEFINED_NAME.at(place, message, hint, [line_of(script, line, "it is used here")])


UNDEFINED_NAME = Rule("AML518", "undefined-name", "warning").explained(
    summary="A script uses a name that nothing defines.",
    why="The line ends with a NameError when it is reached, which may be after hours. pyflakes looks for these; names "
    "in annotations, and scripts that may define names otherwise (`import *`, `exec`, `globals()`), are left alone.",
)


@lru_cache(maxsize=64)  # scripts with the same content have one syntax
def _names_undefined(syntax: Syntax) -> dict[str, int]:
    """The names in a script that are not defined where they are used, each with its first line."""
    if _defined(syntax) is None:
        return {}
    from pyflakes import checker, messages

    notes = [argument.annotation for argument in syntax.of(ast.arg)]
    notes += [variable.annotation for variable in syntax.of(ast.AnnAssign)]
    notes += [function.returns for function in syntax.functions]
    noted = {id(node) for note in notes if note is not None for node in walk(note)}
    places = {(each.lineno, each.col_offset) for each in syntax.of(ast.Name) if id(each) not in noted}
    found: dict[str, int] = {}
    for each in checker.Checker(ast.Module(syntax.body, [])).messages:
        if isinstance(each, messages.UndefinedName) and (each.lineno, each.col) in places:
            found[each.message_args[0]] = min(each.lineno, found.get(each.message_args[0], each.lineno))
    return found


_MOST_FILES = 30


class Import(NamedTuple):
    """One import: the dotted path of a module, or of a name in it, and where that is written."""

    path: str
    file: Path
    line: int


def imports_at_once(syntax: Syntax, file: Path) -> Iterator[Import]:
    """What a script imports whenever it runs: not within a function, an `if` or a `try`, and not relatively."""
    for node in syntax.body:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, file, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (Import(f"{node.module}.{alias.name}", file, node.lineno) for alias in node.names)


def all_imports(file: Path, folders: Sequence[Path]) -> list[Import]:
    """The same for a script and the modules in `folders` that it imports, those of packages included."""
    found: list[Import] = []
    waiting, seen = [file], {file}
    while waiting and len(seen) <= _MOST_FILES:
        current = waiting.pop(0)
        syntax = parse(current)
        if syntax is None:
            continue
        imports = list(imports_at_once(syntax, current))
        found.extend(imports)
        paths = [(folder, each.path) for each in imports for folder in (current.parent, *folders)]
        for node in syntax.body:
            if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(current.parents):
                folder, package = current.parents[node.level - 1], f"{node.module}." if node.module else ""
                paths += [(folder, f"{package}{alias.name}") for alias in node.names]
        for other in (part for folder, path in paths for part in _files_of(folder, path.split("."))):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return found


def module_in(folder: Path, module: str) -> Path | None:
    """The file of a module in a folder; None if there is none."""
    package = folder / module / "__init__.py"
    return next((file for file in (folder / f"{module}.py", package) if os.path.isfile(file)), None)


def _files_of(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """The files that run when a dotted path is imported from a folder."""
    for part in parts:
        found = module_in(folder, part)
        if found is not None:
            yield found
        folder = folder / part
        if not os.path.isdir(folder):
            return
