"""The code of a job: scripts and files that it does not contain, and what should not be uploaded with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from trainyard.lint.checks import LintContext, check, known_words
from trainyard.project_files import names_in
from trainyard.resources import PACKAGE, STEP_ARCHIVE
from trainyard.settings.quantities import first_names
from trainyard.settings.suggestions import close_match, closest, only_close
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.documents import Node
from trainyard.spec.job_types import python_files
from trainyard.spec.parsed import SCRIPT_NOT_FOUND, ParsedCommand, is_there
from trainyard.spec.rule import Rule
from trainyard.spec.rules import NAME_CLASH
from trainyard.spec.shell_lexer import Word, simple_commands
from trainyard.spec.shell_words import CalledScript, archive_on_path, without_assignments
from trainyard.spec.uploads import ignore_file

_SHELLS = frozenset({"bash", "sh", "source", "."})
_HARMLESS: frozenset[str] = frozenset(known_words("harmless_programs"))
_FILE_OPTIONS: dict[str, list[str]] = known_words("options_with_files")


FILE_NOT_IN_CODE = Rule("AML418", "file-not-in-code", "error").explained(
    summary="A file or folder that the code does not contain is given to cd, bash, pip, conda, Spark or PYTHONPATH.",
    why="The command runs in a copy of the `code` folder, and nothing else of the repository is there. Only reported "
    "if nothing earlier in the command could have created it, and if the folder contains Python files at all.",
)


@check("command")
def _file_not_in_code(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    code = command.component.code
    if code is None or not any(python_files(code)):
        return
    roots = (code, *(include.parent for include in command.component.additional_includes))
    archive = archive_on_path(command.text)
    if archive is not None and not any(is_there(root / archive.text, folder=False) for root in roots):
        message = f"the code folder '{code.name}' contains no file '{archive.text}'"
        hint = "`trainyard render` writes it." if archive.text == STEP_ARCHIVE else ""
        yield FILE_NOT_IN_CODE.at(command.span(archive.start, archive.end), message, hint)
    for words in simple_commands(command.text):
        rest = without_assignments(words)
        if not rest:
            continue
        is_folder = rest[0].text == "cd"
        for word in _named(rest):
            if not _is_relative(word) or any(is_there(root / word.text, is_folder) for root in roots):
                continue
            kind = "folder" if is_folder else "file"
            message = f"the code folder '{code.name}' contains no {kind} '{word.text}'"
            named = code / word.text
            hint = close_match(named.name, names_in(named.parent))
            yield FILE_NOT_IN_CODE.at(command.span(word.start, word.end), message, hint)
        if _program(rest) not in _HARMLESS:
            return


def _program(words: Sequence[Word]) -> str:
    """The program that words start; pip for `python -m pip`."""
    if len(words) > 2 and words[1].text == "-m" and words[2].text == "pip":
        return "pip"
    return words[0].text


def _named(words: Sequence[Word]) -> Iterator[Word]:
    """The files and folders that a simple command names."""
    first, program = words[0], _program(words)
    is_script_run = program in _SHELLS and len(words) > 1 and words[1].text.endswith(".sh")
    if is_script_run or (program == "cd" and len(words) == 2):
        yield words[1]
    elif first.text.startswith("./") and first.text.endswith(".sh"):
        yield first
    for option, value in pairwise(words):
        if option.text in _FILE_OPTIONS.get(program, ()):
            yield value


def _is_relative(word: Word) -> bool:
    """Whether a word is a path in the code, as far as its text says."""
    return (
        word.is_plain
        and "${{" not in word.text
        and "://" not in word.text
        and not word.text.startswith(("/", "~", "-", ".."))
        and not set(word.text) & set("*?[]{}")
    )


@check("command")
def _includes_clash(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """Additional includes that are named like what the code has, or that overwrite files of each other."""
    code = command.component.code
    first: dict[str, tuple[Node, Path]] = {}
    for item in command.node.items_of("additional_includes"):
        if not item.is_text:
            continue  # of a Git repository or an artifact, which are not on this machine
        path = Path(os.path.realpath(command.reading.path(item.text)))
        earlier, other = first.setdefault(path.name, (item, path))
        if code is not None and os.path.exists(code / path.name) and not os.path.islink(code / path.name):
            message = f"the code folder has a '{path.name}' already: Azure ML's client refuses the component"
            yield NAME_CLASH.at(item.span, message, "Rename or remove one of them.")
        elif earlier is not item and (path.is_file() or {*names_in(path)} & {*names_in(other)} - {"__init__.py"}):
            message = f"files of this '{path.name}' overwrite those that have the same names in the other"
            related = [Related(earlier.span, "the other is included here")]
            yield NAME_CLASH.at(item.span, message, "Rename or remove one of them.", related, severity="warning")


@check("command")
def _script_not_found(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called in _missing(command, context):
        script, names = called.call.script, list(python_files(called.root))
        if called.call.is_module or command.component.additional_includes:
            continue
        hint = close_match(script.text.removeprefix("./"), names)
        hint = hint or (f"It contains other scripts: {', '.join(names[:3])}." if names else "It contains no script.")
        message = f"the code folder '{called.root.name}' contains no '{script.text}'"
        yield SCRIPT_NOT_FOUND.at(called.span(script), message, hint, replacement=only_close(script.text, names))


SCRIPT_LEFT_OUT = Rule("AML407", "script-left-out", "error", is_let_pass=True).explained(
    summary="The script, or the archive it is in, is excluded from the uploaded code by .amlignore or .gitignore.",
    why="It is in the folder but not uploaded, so the job does not find it. `.amlignore` takes precedence over "
    "`.gitignore`.",
)


@check("command")
def _script_left_out(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    left_out = [
        (called.call.script.text, called.place)
        for called in context.calls_of(command)
        if called.file is not None and context.is_left_out(called.root, called.file)
    ]
    code, archive = command.component.code, archive_on_path(command.text)
    if code is not None and archive is not None and context.is_left_out(code, code / archive.text):
        left_out.append((archive.text, command.span(archive.start, archive.end)))
    for name, place in left_out:
        message = f"'{name}' is not uploaded: the ignore file of the code excludes it"
        yield SCRIPT_LEFT_OUT.at(place, message, "Add a `!…` line for it, or narrow the pattern.")


MODULE_NOT_FOUND = Rule("AML408", "module-not-found", "error", is_let_pass=True).explained(
    summary="The package in the code has no such module.",
    why="Only reported if the package is in the code; one that is installed in the environment cannot be checked.",
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


_SHOWN = 3


DOUBTFUL_UPLOAD = Rule("AML423", "doubtful-upload", "warning").explained(
    summary="The code folder holds secrets, a repository's history, links that leave it, checkpoints, or too much.",
    why="Azure ML's client uploads every file of the `code` folder and of `additional_includes`, also through links, "
    "unless the folder's `.amlignore`, or else its `.gitignore`, leaves it out. Everyone who may read the workspace's "
    "storage can read them: `.env`, private keys, `.git` with everything that was ever committed. Checkpoints above "
    "10 MiB, other files above 200 MiB, and what makes a folder larger than 300 MB belong in a data asset or a model.",
)


@check("command")
def _doubtful_upload(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    included = [item for item in command.node.items_of("additional_includes") if item.is_text]
    paths = (command.reading.path(item.text.removesuffix(".zip")) for item in included)
    uploaded = [(command.node.get("code"), command.component.code)]
    uploaded += [(item, Path(os.path.abspath(path))) for item, path in zip(included, paths, strict=True)]
    for node, folder in uploaded:
        found = context.doubtful_uploads(folder) if folder is not None and node is not None else []
        if node is None or folder is None or not found:
            continue
        shown = first_names((f"{place} ({reason})" for place, reason in found), _SHOWN)
        rules = ignore_file(folder)
        name = rules.name if rules is not None else ".amlignore"
        lines = ", ".join(f"`/{place}`" for place in [place for place, _ in found if place != "."][:_SHOWN])
        hint = f"Add {lines} to `{name}` in that folder." if lines else f"Leave some out in `{name}` in that folder."
        yield DOUBTFUL_UPLOAD.at(node.span, f"would be uploaded with the code: {shown}", hint)
