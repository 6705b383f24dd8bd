"""The Python scripts that a command calls, with the words that it passes to them, and Trainyard's steps."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trainyard.resources import PACKAGE, STEP_ARCHIVE, word_tables
from trainyard.settings.regex import regex
from trainyard.settings.written_settings import SETTINGS
from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Document, Node
from trainyard.spec.expressions import name_bound
from trainyard.spec.model import AnyComponent, Port, code_of
from trainyard.spec.parsed import ParsedCommand, is_there
from trainyard.spec.shell_lexer import Word, simple_commands

_ASSIGNMENT = regex(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = regex(r"(?:.*/)?python[0-9.]*")
# As the templates of a project write it: the archive, and what the image may have.
_ARCHIVE = regex(r'PYTHONPATH="([^"$:/]+\.zip):\$PYTHONPATH" ')
LAUNCHERS = frozenset({"torchrun", "deepspeed", "accelerate", "horovodrun", "mpirun", "mpiexec"})
LAUNCHER_MODULES = frozenset(
    {"torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch", "deepspeed.launcher.runner"}
)
_PRINTING = frozenset({"echo", "printf"})
_HARMLESS = frozenset[str](word_tables("spec")["harmless_programs"]["words"])
_VARIABLE = regex(r"(\"?)\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})\1")
# With any of these, a variable may have another value than the one that a command sets.
_MAY_SET_OTHERWISE = regex(
    r"\b(?:if|for|while|until|case|select|read|unset|eval|declare|local|readonly|typeset|IFS|set)\b"
    r"|\|\||(?<!\$)\(|\bsh -"
)
# What the shell does not leave as it is when it splits the value of a variable, or that this module does not follow.
_NOT_PLAIN_VALUE = regex(r"['\"\\*?`\[\]]|\$(?!\{\{)")
_PARTS_OF_VALUE = regex(r"(?:\$\{\{.*?\}\}|\S)+")
# Flags of Python itself that take a separate value.
_PYTHON_FLAGS_WITH_VALUE = frozenset({"-W", "-X"})


class Call(NamedTuple):
    """A call of a Python script or module, with its arguments."""

    script: Word
    is_module: bool
    arguments: tuple[Word, ...]
    follows_others: bool
    """Whether earlier commands may have changed the working directory or created files."""


def python_calls(command: str) -> Iterator[Call]:
    """Each Python script or module that a command calls, including through launchers (`torchrun train.py`)."""
    follows_others = False
    variables: dict[str, Word] = {}
    for words in simple_commands(command):
        rest = without_assignments(words)
        yield from _calls_of(_with_values(rest, variables, command) if variables else rest, follows_others)
        if not rest or rest[0].text == "export":
            variables.update(_set_once(words, command))
        follows_others = follows_others or bool(rest and rest[0].text not in _HARMLESS)


def _calls_of(words: Sequence[Word], follows_others: bool) -> Iterator[Call]:
    if not words or words[0].text in _PRINTING:
        return
    place = next((at for at, word in enumerate(words) if _PYTHON.fullmatch(word.text)), None)
    if place is not None:
        yield from _python_call(words[place + 1 :], follows_others=follows_others)
    elif words[0].text in LAUNCHERS or words[0].text.endswith(".py"):
        yield from _script_among(words, follows_others=follows_others)


def _set_once(words: Sequence[Word], command: str) -> Iterator[tuple[str, Word]]:
    """The variables that words set to a string that the command sets them to wherever they are used after that."""
    times = _times_set(command)
    for word in words:
        name, equals, value = word.text.partition("=")
        written = command[word.start + len(name) + 1 : word.end]
        is_known = written in (value, f'"{value}"', f"'{value}'") and not _NOT_PLAIN_VALUE.search(value)
        if equals and is_known and times[name] == 1:
            start = word.end - len(value) - (written != value)
            yield name, Word(value, start, start + len(value))


@lru_cache(maxsize=16)
def _times_set(command: str) -> Counter[str]:
    """How often a command sets each variable; empty where it may set them in other ways."""
    return Counter() if _MAY_SET_OTHERWISE.search(command) else Counter(re.findall(r"\b(\w+)\+?=", command))


def _with_values(words: Sequence[Word], variables: Mapping[str, Word], command: str) -> list[Word]:
    """Words with the values of variables, which are divided at spaces where they are not in quotes."""
    found: list[Word] = []
    for word in words:
        match = _VARIABLE.fullmatch(command, word.start, word.end)
        value = variables.get(match[2] or match[3]) if match is not None else None
        if match is None or value is None:
            found.append(word)
        elif match[1]:
            found.append(value._replace(is_quoted=True))
        else:
            parts = _PARTS_OF_VALUE.finditer(value.text)
            found += [Word(part[0], value.start + part.start(), value.start + part.end()) for part in parts]
    return found


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
            script = next((file for file in files if is_there(file, folder=False)), None)
            yield CalledScript(call, root, script, text, command.reading.document, component.inputs, includes)


def _unpacked(command: str, root: Path) -> tuple[Path, ...]:
    """The folder with the content of the archive on Python's path: Trainyard's own, whose steps it holds.

    That the archive is the installed version's, `trainyard render --check` tells.
    """
    archive = archive_on_path(command)
    is_ours = archive is not None and archive.text == STEP_ARCHIVE and is_there(root / archive.text, folder=False)
    return (PACKAGE,) if is_ours else ()


_STEP = regex(r"(?:.*/)?trainyard[./]steps[./](\w+?)(?:\.py)?")


class StepCall(NamedTuple):
    """A call of a step in a command: the value of each flag, by the setting's name; None for a flag without a value.

    `may_have_others`: variables of the shell, or strings from inputs, may bring further flags along.
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
    from trainyard.settings.task_fields import built_in_steps  # 10 ms, for commands that may call a step

    for call in python_calls(command):
        match = _STEP.fullmatch(call.script.text)
        if match is not None and match[1] in built_in_steps():
            flags, others = _flags_among(call.arguments)
            may_be_flags = any(not each.is_plain or (not each.is_quoted and "${{" in each.text) for each in others)
            return StepCall(match[1], flags, may_be_flags)
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


def settings_port(component: AnyComponent | None) -> str | None:
    """Return the input of a component that its command takes for the step's settings file; None if it has none."""
    code = code_of(component)
    command = code.command.data if code is not None else None
    call = step_call(command) if isinstance(command, str) else None
    return call.port_of(SETTINGS) if call is not None else None
