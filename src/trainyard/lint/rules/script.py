"""The flags that a command gives its Python script, held against those that the script takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trainyard.foundation.suggestions import close_match, closest, did_you_mean, only_close
from trainyard.lint.context import LintContext
from trainyard.lint.script_flags import Flag, ScriptFlags, with_task_flags
from trainyard.lint.scripts import CalledScript
from trainyard.lint.shell_words import Word, simple_commands
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.expressions import only_binding
from trainyard.spec.model import Component, Port, Value
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Example, Rule

_SCRIPT = """\
=== src/train.py
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
print(parser.parse_args())
"""

UNKNOWN_FLAG = Rule(
    "AML501",
    "unknown-flag",
    "error",
    "The command gives a flag that the script does not have.",
    "Read from the script's source, without running it: argparse, click, typer, and the dataclasses of "
    "trainyard.steps. Scripts that cannot be read this way are left alone.",
    Example(
        """\
type: command
name: train
code: ./src
command: python train.py ‸--‹num-⇒›epochs ${{inputs.epochs}}
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
"""
        + _SCRIPT
    ),
)
MISSING_FLAG = Rule(
    "AML502",
    "missing-flag",
    "error",
    "The script requires a flag that the command does not give.",
    "The script ends at once, after the cluster has been started and the data mounted.",
    Example(
        """\
type: command
name: train
code: ./src
command: python ‸train.py‹⇒ --epochs 3› --optimizer sgd
environment: azureml:torch:3
"""
        + _SCRIPT
    ),
)
WRONG_CHOICE = Rule(
    "AML503",
    "wrong-choice",
    "error",
    "A value is given that the script does not take.",
    "The component offers, or a job sets, what the script's `choices` do not hold.",
    Example(
        """\
type: command
name: train
code: ./src
command: python train.py --epochs 3 --optimizer '${{inputs.optimizer}}'
environment: azureml:torch:3
inputs:
  optimizer: {type: string, enum: [adam, ‹lion⇒sgd›], default: adam}
"""
        + _SCRIPT
    ),
)
UNKNOWN_PROGRAM = Rule(
    "AML504",
    "unknown-program",
    "error",
    "The command calls a program whose name is mistyped.",
    "The shell finds no such program. Said of names that differ by a slip from python, torchrun and the like.",
    Example("""\
type: command
name: train
command: ‹pyhton⇒python› train.py
environment: azureml:torch:3
"""),
)
FLAG_VALUE = Rule(
    "AML505",
    "flag-value",
    "error",
    "A flag stands without the value that it takes, with one where it takes none, or with none that is a number.",
    "argparse ends the script at once. A switch (`store_true`) is given or left out: a boolean input's `True` after it "
    "is one word too many.",
    Example(
        """\
type: command
name: train
code: ./src
command: python train.py --fast‹ ‸true⇒›
environment: azureml:torch:3
=== src/train.py
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--fast", action="store_true")
print(parser.parse_args())
"""
    ),
)
RULES = (UNKNOWN_FLAG, MISSING_FLAG, WRONG_CHOICE, UNKNOWN_PROGRAM, FLAG_VALUE)

_LONG_WITH_ONE_DASH = re.compile(r"-[A-Za-z][A-Za-z0-9_-]{2,}(?:=.*)?", re.DOTALL)
_REDIRECTION = re.compile("[<>]")
_UNCLOSED = re.compile(r"\$\{\{(?![^{}]*\}\})|\$\{\{[^{}]*\$\{\{")
_PROGRAMS = ("python", "python3", "torchrun", "deepspeed", "mpirun", "accelerate", "horovodrun", "Rscript")


def check_command(seen: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """Flags of the calls in a command."""
    yield from _mistyped_programs(seen)
    yield from _typographic_dashes(seen)
    for called, flags in _readable_calls(seen, context):
        yield from _unknown_commands(called, flags)
        called, flags = _of_command(called, flags)
        yield from _unknown_flags(called, flags)
        yield from _flag_values(called, flags)
        yield from _missing_flags(called, flags)
        for flag, value in _values(called, flags):
            yield from _wrong_choices(called, flag, value, seen)


def _mistyped_programs(seen: ParsedCommand) -> Iterator[Diagnostic]:
    command = seen.node.get("command")
    if command is None or not command.is_text:
        return
    for words in simple_commands(command.text):
        program = words[0]
        meant = only_close(program.text, _PROGRAMS)
        is_script_next = len(words) > 1 and (words[1].text.endswith((".py", ".R")) or words[1].text.startswith("-"))
        if meant is not None and program.text not in _PROGRAMS and is_script_next:
            span = seen.reading.document.span_within(command, program.start, program.end)
            message = f"there is no program '{program.text}'"
            yield UNKNOWN_PROGRAM.at(span, message, f"Did you mean '{meant}'?", replacement=meant)


def _typographic_dashes(seen: ParsedCommand) -> Iterator[Diagnostic]:
    """A flag that an editor for prose has given a dash of its own."""
    command = seen.node.get("command")
    if command is None or not command.is_text or not ("–" in command.text or "—" in command.text):
        return
    for words in simple_commands(command.text):
        for word in words[1:]:
            if word.text[:1] in ("–", "—") and word.text[1:2].isalpha() and not word.is_quoted:
                span = seen.reading.document.span_within(command, word.start, word.end)
                message = f"'{word.text}' begins with a typographic dash, and is no flag to the script"
                yield UNKNOWN_FLAG.at(span, message, f"Write --{word.text[1:]}.", replacement=f"--{word.text[1:]}")


def _unknown_commands(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    """A sub-command that the script does not have, or none where it wants one."""
    first = next(iter(called.call.arguments), None)
    known = ", ".join(flags.commands)
    assert called.file is not None
    if flags.needs_command and (first is None or _gives_no_command(called, flags)):
        message = f"{called.file.name} wants a command before all flags, and is given none"
        yield MISSING_FLAG.at(called.span(called.call.script), message, f"Known here: {known}.")
    elif flags.commands and first is not None and _is_word(first) and first.text not in flags.commands:
        message = f"{called.file.name} has no command '{first.text}'"
        yield WRONG_CHOICE.at(called.span(first), message, did_you_mean(first.text, flags.commands))
    elif first is not None and (meant := _other_command(called, flags)) is not None:
        message = f"the flags are those of the command '{meant}', and '{first.text}' is called"
        yield WRONG_CHOICE.at(called.span(first), message, f"Did you mean '{meant}'?")


def _gives_no_command(called: CalledScript, flags: ScriptFlags) -> bool:
    words = called.call.arguments
    if not all(word.is_plain for word in words) or any(word.text in flags.commands for word in words):
        return False
    return words[0].text.startswith("--") and flags.find(words[0].text.partition("=")[0]) is None


def _other_command(called: CalledScript, flags: ScriptFlags) -> str | None:
    """The one sub-command that has all the flags that are given, when the one that is called has few of them."""
    own = flags.commands.get(called.call.arguments[0].text)
    given = [word.text.partition("=")[0] for word in _given_flags(called)]
    if own is None or sum(own.find(name) is None for name in given) < 2:
        return None
    fitting = [command for command, other in flags.commands.items() if all(map(other.find, given))]
    return fitting[0] if len(fitting) == 1 else None


def _of_command(called: CalledScript, flags: ScriptFlags) -> tuple[CalledScript, ScriptFlags]:
    """The part of a call that a sub-command reads, and its flags; nothing is known when it cannot be told."""
    if not flags.commands:
        return called, flags
    first = next(iter(called.call.arguments), None)
    own = flags.commands.get(first.text) if first is not None and _other_command(called, flags) is None else None
    rest = called.call.arguments[1:] if own is not None else ()
    return replace(called, call=replace(called.call, arguments=rest)), own or ScriptFlags(takes_others=True)


def _is_word(word: Word) -> bool:
    return word.is_plain and "${{" not in word.text and not word.text.startswith(("-", "@")) and not word.is_optional


def _flag_values(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    """Values that are missing, too many, or no numbers."""
    words = called.call.arguments
    for at, word in enumerate(words):
        flag = flags.flags.get(word.text)
        follower = words[at + 1] if at + 1 < len(words) else None
        if follower is not None and _REDIRECTION.search(called.command.text, word.end, follower.start):
            follower = None  # the file that output goes to
        if flag is None or not word.text.startswith("--"):
            continue
        if flag.takes_value is True and (follower is None or follower.text in flags.flags):
            message = f"{word.text} takes a value, and none follows it"
            yield FLAG_VALUE.at(called.span(word), message, f"Write `{word.text} VALUE`.", [_declared(flag)])
        elif flag.takes_value is False and not flags.takes_words and not flags.takes_others and follower is not None:
            if _is_word(follower) or only_binding(follower.text) is not None:
                message = f"{word.text} is a switch and takes no value; '{follower.text}' is one word too many"
                hint = f"Write {word.text} alone, or give the script a flag that takes true or false."
                yield FLAG_VALUE.at(called.span(follower), message, hint, [_declared(flag)])
        elif flag.number is None or follower is None or not _is_word(follower):
            continue
        elif not _is_number(follower.text, flag.number):
            wanted = "a whole number" if flag.number == "int" else "a number"
            message = f"{word.text} takes {wanted}, and not '{follower.text}'"
            yield FLAG_VALUE.at(called.span(follower), message, "", [_declared(flag)])


def _is_number(text: str, kind: str) -> bool:
    try:
        int(text) if kind == "int" else float(text)
    except ValueError:
        return False
    return True


def check_pipeline(seen: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """What jobs set their components' inputs to, held against the choices of the script that gets it."""
    for job in seen.scope.jobs.values():
        component = job.component
        if not isinstance(component, Component) or job.has_own_command or component.code is None:
            continue
        command = context.command_of(component)
        for whole_call, all_flags in _readable_calls(command, context) if command is not None else ():
            called, flags = _of_command(whole_call, all_flags)
            for flag, value in _values(called, flags):
                binding = only_binding(value.text)
                given = job.inputs.get(".".join(binding.path[1:])) if binding and binding.path[0] == "inputs" else None
                port = component.inputs.get(".".join(binding.path[1:])) if binding is not None else None
                if given is not None and port is not None and port.choices is None:
                    yield from _not_among(given, flag, port)


def _readable_calls(seen: ParsedCommand, context: LintContext) -> Iterator[tuple[CalledScript, ScriptFlags]]:
    for called in context.calls_of(seen):
        flags = context.flags_of(called.file, called.root) if called.file is not None else None
        if flags is not None:
            yield called, flags if flags.task_folder is None else _with_task_flags(called, flags)


def _with_task_flags(called: CalledScript, flags: ScriptFlags) -> ScriptFlags:
    """A step's flags with those of the task that the command names: as a word, or as its input's default."""
    words = [word.text for word in called.call.arguments]
    if "--task" not in words[:-1]:
        default = flags.flags["--task"].default
        return flags if default is None else with_task_flags(flags, default)
    task = words[words.index("--task") + 1]
    binding = only_binding(task)
    if binding is None:
        return with_task_flags(flags, None if "$" in task else task)
    port = called.seen.component.inputs.get(".".join(binding.path[1:])) if binding.path[0] == "inputs" else None
    return with_task_flags(flags, port.default.text if port is not None and port.default is not None else None)


def _given_flags(called: CalledScript) -> Iterator[Word]:
    for word in called.call.arguments:
        if word.text == "--":
            return
        if (word.text.startswith("--") or _LONG_WITH_ONE_DASH.fullmatch(word.text)) and not word.is_quoted:
            yield word


def _unknown_flags(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    if flags.takes_others:
        return
    for word in _given_flags(called):
        name = word.text.partition("=")[0]
        if "$" in name or flags.find(name) is not None:
            continue
        if not name.startswith("--") and (f"-{name}" not in flags.flags or name[:2] in flags.flags):
            continue
        known = [flag for flag in flags.flags if flag.startswith("--")]
        meant = closest(name, known)
        span = called.span(Word(name, word.start, word.start + len(name)))
        assert called.file is not None
        message = f"{called.file.name} has no flag {name}"
        related = [_declared(flags.flags[meant])] if meant is not None else []
        yield UNKNOWN_FLAG.at(span, message, did_you_mean(name, known), related, replacement=only_close(name, known))


def _missing_flags(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    # What a variable or a list of arguments brings along cannot be seen.
    # Nor what a binding that is not closed has swallowed, which is reported there.
    if any(not word.is_plain or word.text.startswith("@") or _UNCLOSED.search(word.text)
           for word in called.call.arguments):  # fmt: skip
        return
    if _has_arguments_from_an_input(called):
        return
    given = [flags.find(word.text.partition("=")[0]) for word in called.call.arguments if word.text.startswith("-")]
    unknown = any(flag is None for flag in given)
    for flag in dict.fromkeys(flags.flags.values()):
        if flag.is_required and flag.names and flag not in given:
            if unknown and any(close_match(word.text, flag.names) for word in _given_flags(called)
                               if flags.find(word.text.partition("=")[0]) is None):  # fmt: skip
                continue  # told as an unknown flag
            assert called.file is not None
            message = f"{called.file.name} requires {flag.names[0]}, and the command does not give it"
            yield MISSING_FLAG.at(
                called.span(called.call.script), message, f"Add `{flag.names[0]} …` to the command.", [_declared(flag)]
            )


def _has_arguments_from_an_input(called: CalledScript) -> bool:
    """Whether a text input stands where a flag could: it may bring any flags along."""
    before = ""
    for word in called.call.arguments:
        binding = only_binding(word.text)
        if binding is not None and binding.path[0] == "inputs" and not before.startswith("-") and not word.is_quoted:
            port = called.seen.component.inputs.get(".".join(binding.path[1:]))
            if port is None or (port.type == "string" and port.choices is None):
                return True
        before = word.text
    return False


def _values(called: CalledScript, flags: ScriptFlags) -> Iterator[tuple[Flag, Word]]:
    """Each flag with choices that is given, and the word it is given."""
    words = called.call.arguments
    for at, word in enumerate(words):
        name, equals, value = word.text.partition("=")
        flag = flags.find(name) if name.startswith("-") else None
        if flag is None or flag.choices is None:
            continue
        if equals:
            yield flag, Word(value, word.end - len(value), word.end)
        elif at + 1 < len(words):
            yield flag, words[at + 1]


def _wrong_choices(called: CalledScript, flag: Flag, value: Word, seen: ParsedCommand) -> Iterator[Diagnostic]:
    binding = only_binding(value.text)
    if binding is None:
        if value.is_plain and "${{" not in value.text and value.text not in (flag.choices or ()):
            yield _wrong(called.span(value), value.text, flag, [])
        return
    port = seen.component.inputs.get(".".join(binding.path[1:])) if binding.path[0] == "inputs" else None
    if port is None:
        return
    for choice in port.choices or ():
        yield from _not_among(choice, flag, None)
    if port.choices is None and port.default is not None:
        yield from _not_among(port.default, flag, port)


def _not_among(value: Value, flag: Flag, port: Port | None) -> Iterator[Diagnostic]:
    if isinstance(value.data, (dict, list)) or value.data is None or "${{" in value.text:
        return
    if str(value.data) in (flag.choices or ()) or value.text in (flag.choices or ()):
        return
    related = [Related(port.key_span, f"'{port.name}' is declared here")] if port is not None else []
    yield _wrong(value.span, value.text, flag, related)


def _wrong(span: Span, text: str, flag: Flag, related: list[Related]) -> Diagnostic:
    choices = flag.choices or ()
    message = f"the script's {flag.names[0]} takes {', '.join(choices)}, and not '{text}'"
    return WRONG_CHOICE.at(span, message, close_match(text, choices), [*related, _declared(flag)])


def _declared(flag: Flag) -> Related:
    return Related(Span(flag.file, flag.line, 1, flag.line, 2), f"{flag.names[0]} is declared here")
