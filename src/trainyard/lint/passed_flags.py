"""The calls of scripts in a command, each with the flags that the script takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from trainyard.lint.context import LintContext
from trainyard.lint.scripts.flags import Flag, ScriptFlags
from trainyard.spec.diagnostic import Related, Span
from trainyard.spec.expressions import only_binding
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.shell_words import CalledScript, Word

_LONG_WITH_ONE_DASH = re.compile(r"-[A-Za-z][A-Za-z0-9_-]{2,}(?:=.*)?", re.DOTALL)


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
    """The task that a command names, as a word or as the default of its input; an empty text if it names none."""
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
    return Related(Span(flag.file, flag.line, 1, flag.line, 2), f"{flag.names[0]} is declared here")
