"""The calls of scripts: by commands, with the flags that the scripts take, and by parallel and Spark steps."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.checks import LintContext, LintedFile
from trainyard.lint.scripts.flags import Flag, ScriptFlags
from trainyard.lint.scripts.syntax import line_of
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Related
from trainyard.spec.documents import Document, Entry, Node
from trainyard.spec.expressions import only_binding
from trainyard.spec.job_types import script_file
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.shell_lexer import Word, simple_commands, words_with_values
from trainyard.spec.shell_words import Call, CalledScript

_LONG_WITH_ONE_DASH = regex(r"-[A-Za-z][A-Za-z0-9_-]{2,}(?:=.*)?", re.DOTALL)


def readable_calls(calls: Iterable[CalledScript], context: LintContext) -> Iterator[tuple[CalledScript, ScriptFlags]]:
    """The calls of scripts whose flags are known."""
    for called in calls:
        flags = context.flags_of(called.file, called.root) if called.file is not None else None
        if flags is not None and flags.task_folder is not None:
            assert called.file is not None
            flags = context.flags_with_task(called.file, called.root, flags, _task_of(called, flags))
        if flags is not None:
            yield called, flags


def calls_with_flags(command: ParsedCommand, context: LintContext) -> Iterator[tuple[CalledScript, ScriptFlags]]:
    """The calls in a command, as `with_sub_command` has them."""
    return with_sub_command(readable_calls(context.calls_of(command), context))


def with_sub_command(
    calls: Iterable[tuple[CalledScript, ScriptFlags]],
) -> Iterator[tuple[CalledScript, ScriptFlags]]:
    """Calls, reduced to the arguments and flags of the sub-command; without flags if that is not known."""
    for called, flags in calls:
        first = next(iter(called.call.arguments), None)
        if not flags.commands:
            yield called, flags
        elif first is None or first.text not in flags.commands or other_command(called, flags) is not None:
            yield called._replace(call=called.call._replace(arguments=())), ScriptFlags(takes_others=True)
        else:
            rest = called.call._replace(arguments=called.call.arguments[1:])
            yield called._replace(call=rest), flags.commands[first.text]


def _task_of(called: CalledScript, flags: ScriptFlags) -> str | None:
    """The task that a command names, as a word or as the default of its input; an empty string if it names none."""
    words = [word.text for word in called.call.arguments]
    if "--task" not in words[:-1]:
        default = flags.flags["--task"].default if "--task" in flags.flags else None
        return default or ""
    task = called.call.arguments[words.index("--task") + 1]
    if only_binding(task.text) is None:
        return None if "$" in task.text else task.text
    port = called.port(task)
    return port.default.text if port is not None and port.default is not None else None


def other_command(called: CalledScript, flags: ScriptFlags) -> str | None:
    """The only sub-command that has all the given flags, if the one in the command has few of them."""
    own = flags.commands.get(called.call.arguments[0].text)
    given = [word.text.partition("=")[0] for word in given_flags(called)]
    if own is None or sum(own.find(name) is None for name in given) < 2:
        return None
    fitting = [command for command, other in flags.commands.items() if all(map(other.find, given))]
    return fitting[0] if len(fitting) == 1 else None


def given_flags(called: CalledScript) -> Iterator[Word]:
    """The words of a call that are flags; what follows a `--` is none."""
    for word in called.call.arguments:
        if word.text == "--":
            return
        if (word.text.startswith("--") or _LONG_WITH_ONE_DASH.fullmatch(word.text)) and not word.is_quoted:
            yield word


def is_word(word: Word) -> bool:
    """Whether a word reaches the script as it is written, and is not a flag."""
    return word.is_plain and "${{" not in word.text and not word.text.startswith(("-", "@")) and not word.is_optional


def declared(flag: Flag) -> Related:
    """Where a script declares a flag."""
    return line_of(flag.file, flag.line, f"{flag.names[0]} is declared here")


class ScriptStep(NamedTuple):
    """A parallel or Spark component, or a job with a script of its own. `task` is what has the code."""

    node: Node
    task: Node
    document: Document
    is_spark: bool

    @property
    def code(self) -> Path | None:
        """The folder of its code, if that is local."""
        code = self.task.find_text("code")
        if code is None or "${{" in code.text or ":" in code.text:
            return None
        folder = self.document.file.parent / code.text
        return folder if os.path.isdir(folder) else None

    @property
    def entry(self) -> Entry | None:
        """The key that names its script, with the script."""
        if self.is_spark:
            return self.task.entries_of("entry").get("file")
        return self.task.entries.get("entry_script")

    @property
    def script(self) -> Path | None:
        """Its script, if that is in the code."""
        entry, code = self.entry, self.code
        if entry is None or code is None or not entry.value.is_text:
            return None
        return script_file(code, entry.value.text)

    def port_type(self, name: str, kind: str = "inputs") -> str:
        """The type of a port that is declared or set in place; empty if it is not known."""
        found = self.node.find(kind, name, "type")
        return found.text if found is not None else ""

    def call(self) -> CalledScript | None:
        """How its script is called; None if that cannot be read."""
        written = self.task.entries.get("args" if self.is_spark else "program_arguments")
        script, code, entry = self.script, self.code, self.entry
        text = written.value if written is not None else entry.value if entry is not None else None
        if script is None or code is None or entry is None or text is None or not text.is_text:
            return None
        words = tuple(word for words in simple_commands(text.text) for word in words) if written is not None else ()
        caller = written.key if written is not None else entry.key
        call = Call(Word(entry.value.text, 0, 0), False, words, False)
        return CalledScript(call, code, script, text, self.document, {}, caller=caller)


def script_steps(file: LintedFile) -> Iterator[ScriptStep]:
    """The parallel and Spark steps of a file that have scripts of their own."""
    for node in file.jobs:
        is_spark = node.word("type") == "spark"
        task = node if is_spark else node.get("task")
        if node.word("type") in ("spark", "parallel") and task is not None and task.is_mapping:
            yield ScriptStep(node, task, file.document, is_spark)


def limited_values(called: CalledScript, flags: ScriptFlags) -> Iterator[tuple[Flag, Word]]:
    """Each flag that takes one of some choices, or a number, with the value that is passed."""
    for name, _, value in words_with_values(called.call.arguments):
        flag = flags.find(name) if name.startswith("-") else None
        if flag is not None and value is not None and (flag.choices is not None or flag.number is not None):
            yield flag, value
