"""A command as the shell splits it: words with their offsets, the Python scripts that they call, and Trainyard's steps.

Bindings are never split. What only a shell could know (variables, command substitution) is left as it is written, so
that the `$` remains visible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trainyard.resources import PACKAGE, STEP_ARCHIVE
from trainyard.settings.written_settings import SETTINGS
from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Document, Node
from trainyard.spec.expressions import name_bound
from trainyard.spec.model import AnyComponent, Port, code_of
from trainyard.spec.parsed import ParsedCommand

_OPERATORS = re.compile(r"&&|\|\||[;|&\n]|[0-9]?>>?(?:&[0-9])?|<")
_BLANKS = re.compile(r"[ \t\r]+|\\\r?\n")
# The bound keeps a command that consists of openings from being searched to its end for each of them.
_BINDING = re.compile(r"\$\{\{.{0,500}?\}\}", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
# As the templates of a project write it: the archive, and what the image may have.
_ARCHIVE = re.compile(r'PYTHONPATH="([^"$:/]+\.zip):\$PYTHONPATH" ')
_SUBSTITUTION = re.compile(r"\$\(|`|\$[A-Za-z_{](?!\{)")
LAUNCHERS = frozenset({"torchrun", "deepspeed", "accelerate", "horovodrun", "mpirun", "mpiexec"})
LAUNCHER_MODULES = frozenset(
    {"torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch", "deepspeed.launcher.runner"}
)
_PRINTING = frozenset({"echo", "printf"})
# Commands that change neither the working directory nor files in it.
_HARMLESS = frozenset(
    {"export", "set", "ulimit", "env", "ls", "pwd", "nvidia-smi", "date", "true", ":", "sleep", "which", "df", "free"}
    | {"echo", "printf", "pip", "pip3", "conda", "apt-get", "python", "python3"}
)
# Flags of Python itself that take a separate value.
_PYTHON_FLAGS_WITH_VALUE = frozenset({"-W", "-X"})


class Word(NamedTuple):
    """One word: its text without quotes, and its offsets in the command. `is_optional`: inside `$[[ … ]]`."""

    text: str
    start: int
    end: int
    is_optional: bool = False
    is_quoted: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the process gets this as it is: it contains no variable or command, but maybe a binding."""
        return _SUBSTITUTION.search(_BINDING.sub("", self.text)) is None


class Call(NamedTuple):
    """A call of a Python script or module, with its arguments."""

    script: Word
    is_module: bool
    arguments: tuple[Word, ...]
    follows_others: bool
    """Whether earlier commands may have changed the working directory or created files."""


@lru_cache(maxsize=4096)
def simple_commands(command: str) -> list[list[Word]]:
    """The words of a command, one list for each part that ends with `&&`, `;`, `|` or a line end."""
    commands: list[list[Word]] = [[]]
    is_optional = False
    position = 0
    while position < len(command):
        if blanks := _BLANKS.match(command, position):
            position = blanks.end()
        elif command.startswith("$[[", position) or (is_optional and command.startswith("]]", position)):
            is_optional = command[position] == "$"
            position += 3 if is_optional else 2
        elif command[position] == "#" and (position == 0 or command[position - 1] in " \t\n"):
            line_end = command.find("\n", position)
            position = len(command) if line_end < 0 else line_end
        elif operator := _OPERATORS.match(command, position):
            position = operator.end()
            if operator[0].lstrip("0123456789")[0] not in "<>":
                commands.append([])
        else:
            word = _word(command, position, is_optional)
            commands[-1].append(word)
            position = word.end
    return [words for words in commands if words]


def _word(command: str, start: int, is_optional: bool) -> Word:
    parts: list[str] = []
    is_quoted = False
    position = start
    while position < len(command):
        character = command[position]
        if binding := _BINDING.match(command, position):
            parts.append(binding[0])
            position = binding.end()
        elif character in "'\"":
            closing = _closing_quote(command, position)
            parts.append(command[position + 1 : closing])
            is_quoted = True
            position = closing + 1
        elif character == "\\" and position + 1 < len(command) and command[position + 1] != "\n":
            parts.append(command[position + 1])
            position += 2
        elif character in " \t\r\n;|&<>\\" or (is_optional and command.startswith("]]", position)):
            break
        else:
            parts.append(character)
            position += 1
    return Word("".join(parts), start, max(position, start + 1), is_optional, is_quoted)


def _closing_quote(command: str, opening: int) -> int:
    quote = command[opening]
    position = opening + 1
    while position < len(command) and command[position] != quote:
        position += 2 if quote == '"' and command[position] == "\\" else 1
    return min(position, len(command))


def python_calls(command: str) -> Iterator[Call]:
    """Each Python script or module that a command calls, including through launchers (`torchrun train.py`)."""
    follows_others = False
    for words in simple_commands(command):
        rest = without_assignments(words)
        yield from _calls_of(rest, follows_others)
        follows_others = follows_others or bool(rest and rest[0].text not in _HARMLESS)


def _calls_of(words: Sequence[Word], follows_others: bool) -> Iterator[Call]:
    if not words or words[0].text in _PRINTING:
        return
    place = next((at for at, word in enumerate(words) if _PYTHON.fullmatch(word.text)), None)
    if place is not None:
        yield from _python_call(words[place + 1 :], follows_others=follows_others)
    elif words[0].text in LAUNCHERS or words[0].text.endswith(".py"):
        yield from _script_among(words, follows_others=follows_others)


def archive_on_path(command: str) -> Word | None:
    """The archive of the snapshot in which a command lets Python find modules: `PYTHONPATH="steps.zip:$PYTHONPATH"`."""
    match = _ARCHIVE.search(command)
    return Word(match[1], *match.span(1)) if match is not None else None


def without_archive(command: str) -> str:
    """The command without the variable that puts an archive on Python's path."""
    return _ARCHIVE.sub("", command)


def without_assignments(words: Sequence[Word]) -> Sequence[Word]:
    """The words of a simple command without the variables that are set for it."""
    first = next((at for at, word in enumerate(words) if not _ASSIGNMENT.match(word.text)), len(words))
    return words[first:]


def _python_call(words: Sequence[Word], *, follows_others: bool) -> Iterator[Call]:
    position = 0
    while position < len(words) and words[position].text.startswith("-"):
        flag = words[position].text
        if flag == "-m" and position + 1 < len(words):
            module = words[position + 1]
            if module.text in LAUNCHER_MODULES:
                yield from _script_among(words[position + 2 :], follows_others=follows_others)
                return
            yield Call(module, True, tuple(words[position + 2 :]), follows_others)
            return
        if flag in ("-c", "-"):
            return
        position += 2 if flag in _PYTHON_FLAGS_WITH_VALUE else 1
    if position < len(words) and words[position].text.endswith(".py"):
        yield Call(words[position], False, tuple(words[position + 1 :]), follows_others)


def _script_among(words: Sequence[Word], *, follows_others: bool) -> Iterator[Call]:
    """The script among the arguments of a launcher."""
    place = next((at for at, word in enumerate(words) if word.text.endswith(".py")), None)
    if place is not None:
        yield Call(words[place], False, tuple(words[place + 1 :]), follows_others)


class CalledScript(NamedTuple):
    """A call, the snapshot's folder, and the file in it; None if there is no such file.

    The arguments are written in `text`; `inputs` are what bindings in them may name. `caller` is the key that names
    the script, where it is not named in the text.
    """

    call: Call
    root: Path
    file: Path | None
    text: Node
    document: Document
    inputs: Mapping[str, Port]
    includes: tuple[Path, ...] = ()
    caller: Node | None = None

    @property
    def place(self) -> Span:
        """Where the script is named."""
        return self.caller.span if self.caller is not None else self.span(self.call.script)

    @property
    def name(self) -> str:
        """The name of the file, for messages."""
        assert self.file is not None
        return self.file.name

    def span(self, word: Word) -> Span:
        """Where a word of the arguments is written."""
        return self.document.span_within(self.text, word.start, word.end)

    def port(self, word: Word) -> Port | None:
        """The input that a word consists of; None if it is anything else, or unknown."""
        return self.inputs.get(name_bound(word.text, "inputs") or "")


def called_scripts(command: ParsedCommand) -> Iterator[CalledScript]:
    """Every call of Python in a command whose code is a local folder."""
    component, text = command.component, command.command
    root = component.code
    if root is not None and text is not None and os.path.isdir(root):
        includes = (*component.additional_includes, *_unpacked(command.text, root))
        roots = (root, *(include.parent for include in includes))
        for call in python_calls(command.text):
            path = call.script.text.replace(".", "/")
            names = (f"{path}.py", f"{path}/__main__.py") if call.is_module else (call.script.text,)
            files = (folder / name for folder in roots for name in names)
            script = next((file for file in files if _is_file(file)), None)
            yield CalledScript(call, root, script, text, command.reading.document, component.inputs, includes)


def _unpacked(command: str, root: Path) -> tuple[Path, ...]:
    """The folder with the content of the archive on Python's path: Trainyard's own, whose steps it holds.

    That the archive is the installed version's, `trainyard render --check` tells.
    """
    archive = archive_on_path(command)
    is_ours = archive is not None and archive.text == STEP_ARCHIVE and _is_file(root / archive.text)
    return (PACKAGE,) if is_ours else ()


def _is_file(file: Path) -> bool:
    try:
        return os.path.isfile(file)
    except (OSError, ValueError):
        return False


_STEP = re.compile(r"(?:.*/)?trainyard[./]steps[./](\w+?)(?:\.py)?")


class StepCall(NamedTuple):
    """A call of a step in a command: the value of each flag, by the setting's name; None for a flag without a value.

    `may_have_others`: variables of the shell, or texts from inputs, may bring further flags along.
    """

    step: str
    flags: Mapping[str, Word | None]
    may_have_others: bool

    def port_of(self, name: str) -> str | None:
        """The input that a flag takes its value from; None if it takes it from elsewhere."""
        word = self.flags.get(name)
        return name_bound(word.text, "inputs") if word is not None else None


@lru_cache(maxsize=1024)
def step_call(command: str) -> StepCall | None:
    """Return the call of one of Trainyard's steps in a command; None if it calls none."""
    if "trainyard" not in command:
        return None
    from trainyard.settings.task_fields import is_built_in_step  # 10 ms, for commands that may call a step

    for call in python_calls(command):
        match = _STEP.fullmatch(call.script.text)
        if match is not None and is_built_in_step(match[1]):
            flags, others = _flags_among(call.arguments)
            return StepCall(match[1], flags, any(_may_be_flags(word) for word in others))
    return None


def _flags_among(words: Sequence[Word]) -> tuple[dict[str, Word | None], list[Word]]:
    """The flags among a call's arguments, and the words that are neither flags nor their values."""
    flags: dict[str, Word | None] = {}
    others: list[Word] = []
    waiting = ""
    for word in words:
        if word.text.startswith("--") and not word.is_quoted:
            name, equals, value = word.text.removeprefix("--").partition("=")
            waiting = "" if equals else name.replace("-", "_")
            start = word.end - len(value)
            flags[name.replace("-", "_")] = Word(value, start, word.end, word.is_optional) if equals else None
        elif waiting:
            flags[waiting] = word
            waiting = ""
        else:
            others.append(word)
    return flags, others


def _may_be_flags(word: Word) -> bool:
    return not word.is_plain or (not word.is_quoted and "${{" in word.text)


def settings_port(component: AnyComponent | None) -> str | None:
    """Return the input of a component that its command takes for the step's settings file; None if it has none."""
    code = code_of(component)
    command = code.command.data if code is not None else None
    call = step_call(command) if isinstance(command, str) else None
    return call.port_of(SETTINGS) if call is not None else None
