"""Files and folders of the code that a command names to other programs than Python: cd, bash, pip, conda."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.resources import STEP_ARCHIVE
from trainyard.settings.suggestions import close_match
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.script_steps import python_files
from trainyard.spec.shell_words import Word, archive_on_path, simple_commands, without_assignments

_SHELLS = frozenset({"bash", "sh", "source", "."})
# Commands that neither create files nor change the working directory. What pip and conda create lies elsewhere.
_HARMLESS = frozenset(
    {"export", "set", "ulimit", "ls", "pwd", "nvidia-smi", "date", "true", ":", "sleep", "which", "df", "free"}
    | {"echo", "pip", "pip3", "conda", "mamba", "apt-get"}
)
# The options of pip and conda that name a file, by program; `python -m pip` is pip.
_FILE_OPTIONS = {
    "pip": ("-r", "--requirement", "-c", "--constraint"),
    "pip3": ("-r", "--requirement", "-c", "--constraint"),
    "conda": ("-f", "--file"),
    "mamba": ("-f", "--file"),
}


FILE_NOT_IN_CODE = Rule("AML418", "file-not-in-code", "error").explained(
    summary="A file or folder that the code does not contain is given to cd, bash, pip, conda, Spark or PYTHONPATH.",
    why="The command runs in a copy of the `code` folder, and nothing else of the repository is there. Only reported "
    "if nothing earlier in the command could have created it, and if the folder contains Python files at all.",
    example="""\
type: command
name: train
code: ./src
command: pip install -r ‹requirement.txt⇒requirements.txt› && python train.py
environment: azureml:torch:3
=== src/train.py
print("training")
=== src/requirements.txt
pandas==2.2.3
""",
)


@check("command")
def _file_not_in_code(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    code = command.component.code
    if code is None or not python_files(code):
        return
    roots = (code, *(include.parent for include in command.component.additional_includes))
    archive = archive_on_path(command.text)
    if archive is not None and not any(_exists(root / archive.text, is_folder=False) for root in roots):
        message = f"the code folder '{code.name}' contains no file '{archive.text}'"
        hint = "`trainyard render` writes it." if archive.text == STEP_ARCHIVE else ""
        yield FILE_NOT_IN_CODE.at(command.span(archive.start, archive.end), message, hint)
    for words in simple_commands(command.text):
        rest = without_assignments(words)
        if not rest:
            continue
        is_folder = rest[0].text == "cd"
        for word in _named(rest):
            if not _is_relative(word) or any(_exists(root / word.text, is_folder=is_folder) for root in roots):
                continue
            kind = "folder" if is_folder else "file"
            message = f"the code folder '{code.name}' contains no {kind} '{word.text}'"
            siblings = _siblings(code / word.text)
            hint = close_match(os.path.basename(os.path.normpath(word.text)), siblings)
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


def _exists(path: Path, *, is_folder: bool) -> bool:
    try:
        return os.path.isdir(path) if is_folder else os.path.isfile(path)
    except (OSError, ValueError):
        return True


def _siblings(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path.parent))
    except (OSError, ValueError):
        return []
