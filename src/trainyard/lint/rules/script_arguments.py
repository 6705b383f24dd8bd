"""The arguments that a command passes to its Python script, compared with those that the script accepts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise, zip_longest

from trainyard.lint.checks import LintContext, LintedFile, check
from trainyard.lint.rules.sweeps import draws_fractions, sweeps_of
from trainyard.lint.script_calls import (
    calls_with_flags,
    declared,
    given_flags,
    is_word,
    other_command,
    readable_calls,
    script_steps,
    with_sub_command,
)
from trainyard.lint.scripts.flags import Flag, ScriptFlags
from trainyard.settings.suggestions import close_match, closest, did_you_mean, only_close
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Value
from trainyard.spec.expressions import only_binding
from trainyard.spec.literals import WRONG_LITERAL
from trainyard.spec.model import Component, Port
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import CalledScript, Word, simple_commands

_SCRIPT = """\
=== src/train.py
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
print(parser.parse_args())
"""
_REDIRECTION = re.compile("[<>]")
_UNCLOSED = re.compile(r"\$\{\{(?![^{}]*\}\})|\$\{\{[^{}]*\$\{\{")
_DASHES = ("–", "—")
_PROGRAMS = ("python", "python3", "torchrun", "deepspeed", "mpirun", "accelerate", "horovodrun", "Rscript")


UNKNOWN_FLAG = Rule("AML501", "unknown-flag", "error").explained(
    summary="The command passes a flag that the script does not have.",
    why="Flags are read from the script's source, without running it: argparse, click, typer, and the dataclasses of "
    "trainyard.steps. Scripts that cannot be read this way are not checked.",
    example="""\
type: command
name: train
code: ./src
command: python train.py ‸--‹num-⇒›epochs ${{inputs.epochs}}
environment: azureml:torch:3
inputs:
  epochs: {type: integer, default: 3}
"""
    + _SCRIPT,
)


@check("command")
def _unknown_flag(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    yield from _typographic_dashes(command)
    for called, flags in calls_with_flags(command, context):
        yield from _unknown_flags(called, flags)


def _unknown_flags(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    for word in given_flags(called):
        name = word.text.partition("=")[0]
        if "$" in name or flags.find(name) is not None:
            continue
        if flags.takes_others:
            yield from _slip(called, word, name, flags)
            continue
        if not name.startswith("--") and (f"-{name}" not in flags.flags or name[:2] in flags.flags):
            continue
        known = [flag for flag in flags.flags if flag.startswith("--")]
        meant = closest(name, known)
        span = called.span(Word(name, word.start, word.start + len(name)))
        message = f"{called.name} has no flag {name}"
        related = [declared(flags.flags[meant])] if meant is not None else []
        hint = did_you_mean(name, known)
        yield UNKNOWN_FLAG.at(span, message, hint, related, only_close(name, known))


def _slip(called: CalledScript, word: Word, name: str, flags: ScriptFlags) -> Iterator[Diagnostic]:
    """A flag that is one slip from one of the script's, which leaves unknown flags alone."""
    given = {other.text.partition("=")[0] for other in called.call.arguments}
    free = [flag for flag in flags.flags if flag.startswith("--") and flag not in given]
    meant = only_close(name, free) if name.startswith("--") else None
    if meant is not None:
        span = called.span(Word(name, word.start, word.start + len(name)))
        message = f"{called.name} has no flag {name}, ignores it, and continues without {meant}"
        related = [declared(flags.flags[meant])]
        yield UNKNOWN_FLAG.at(span, message, f"Did you mean '{meant}'?", related, severity="warning")


def _typographic_dashes(command: ParsedCommand) -> Iterator[Diagnostic]:
    """Flags whose dashes a word processor has replaced."""
    if not any(dash in command.text for dash in _DASHES):
        return
    for words in simple_commands(command.text):
        for word in words[1:]:
            if word.text.startswith(_DASHES) and word.text[1:2].isalpha() and not word.is_quoted:
                right = f"--{word.text[1:]}"
                message = f"'{word.text}' starts with a typographic dash, so the script does not see a flag"
                yield UNKNOWN_FLAG.at(command.span(word.start, word.end), message, f"Write {right}.", replacement=right)


MISSING_FLAG = Rule("AML502", "missing-flag", "error").explained(
    summary="The command does not pass a flag that the script requires.",
    why="The script exits at once, after the cluster has started and the data is mounted.",
    example="""\
type: command
name: train
code: ./src
command: python ‸train.py‹⇒ --epochs 3› --optimizer sgd
environment: azureml:torch:3
"""
    + _SCRIPT,
)


@check("command")
def _missing_flag(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, flags in readable_calls(context.calls_of(command), context):
        if flags.needs_command and (not called.call.arguments or _gives_no_command(called, flags)):
            message = f"{called.name} requires a command before its flags, and gets none"
            hint = f"Known commands: {', '.join(flags.commands)}."
            yield MISSING_FLAG.at(called.place, message, hint)
    for called, flags in calls_with_flags(command, context):
        yield from _missing_flags(called, flags, "the command")


def _missing_flags(called: CalledScript, flags: ScriptFlags, where: str) -> Iterator[Diagnostic]:
    # Variables, argument files, strings from inputs and unclosed bindings may bring any flags along.
    words = called.call.arguments
    if any(not word.is_plain or word.text.startswith("@") or _UNCLOSED.search(word.text) for word in words):
        return
    if _has_arguments_from_an_input(called):
        return
    given = [flags.find(word.text.partition("=")[0]) for word in words if word.text.startswith("-")]
    unknown = [word.text for word in given_flags(called) if flags.find(word.text.partition("=")[0]) is None]
    for flag in dict.fromkeys(flags.flags.values()):
        if not flag.is_required or not flag.names or flag in given:
            continue
        if None in given and any(close_match(word, flag.names) for word in unknown):
            continue  # reported as an unknown flag
        message = f"{called.name} requires {flag.names[0]}, and {where} does not pass it"
        hint = f"Add `{flag.names[0]} …` to {where}."
        yield MISSING_FLAG.at(called.place, message, hint, [declared(flag)])


def _gives_no_command(called: CalledScript, flags: ScriptFlags) -> bool:
    words = called.call.arguments
    if not all(word.is_plain for word in words) or any(word.text in flags.commands for word in words):
        return False
    return words[0].text.startswith("--") and flags.find(words[0].text.partition("=")[0]) is None


def _has_arguments_from_an_input(called: CalledScript) -> bool:
    """Whether a string input is used where a flag could be."""
    before = ""
    for word in called.call.arguments:
        binding = only_binding(word.text)
        if binding is not None and binding.path[0] == "inputs" and not before.startswith("-") and not word.is_quoted:
            port = called.port(word)
            if port is None or (port.type == "string" and port.choices is None):
                return True
        before = word.text
    return False


WRONG_CHOICE = Rule("AML503", "wrong-choice", "error").explained(
    summary="A value is not one of the script's choices.",
    why="The component offers, or a job sets, a value that the script's `choices` do not contain.",
    example="""\
type: command
name: train
code: ./src
command: python train.py --epochs 3 --optimizer '${{inputs.optimizer}}'
environment: azureml:torch:3
inputs:
  optimizer: {type: string, enum: [adam, ‹lion⇒sgd›], default: adam}
"""
    + _SCRIPT,
)


@check("command")
def _wrong_choice(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, flags in readable_calls(context.calls_of(command), context):
        yield from _unknown_command(called, flags)
    for called, flags in calls_with_flags(command, context):
        yield from _wrong_choices(called, flags)


def _wrong_choices(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    for flag, value in _values(called, flags):
        if only_binding(value.text) is None:
            if value.is_plain and "${{" not in value.text and value.text not in (flag.choices or ()):
                yield _not_a_choice(called.span(value), value.text, flag, [])
            continue
        port = called.port(value)
        for choice in (port.choices or ()) if port is not None else ():
            yield from _compare(choice, flag, None)
        if port is not None and port.choices is None and port.default is not None:
            yield from _compare(port.default, flag, port)


@check("pipeline")
def _choices_of_jobs(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """What jobs set their components' inputs to, compared with the choices of the script."""
    for job in pipeline.model.jobs.values():
        component = job.component
        command = context.command_of(component) if isinstance(component, Component) else None
        if not isinstance(component, Component) or command is None or job.has_own_command or component.code is None:
            continue
        for called, flags in calls_with_flags(command, context):
            for flag, value in _values(called, flags):
                binding = only_binding(value.text)
                name = ".".join(binding.path[1:]) if binding is not None else ""
                given = job.inputs.get(name) if binding is not None and binding.path[0] == "inputs" else None
                port = component.inputs.get(name)
                if given is not None and port is not None and port.choices is None:
                    yield from _compare(given, flag, port)


def _unknown_command(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    """A sub-command that the script does not have, or whose flags are those of another one."""
    first = next(iter(called.call.arguments), None)
    if first is None or (flags.needs_command and _gives_no_command(called, flags)):
        return
    if flags.commands and is_word(first) and first.text not in flags.commands:
        message = f"{called.name} has no command '{first.text}'"
        yield WRONG_CHOICE.at(called.span(first), message, did_you_mean(first.text, flags.commands))
    elif (meant := other_command(called, flags)) is not None:
        message = f"these are flags of the command '{meant}', not of '{first.text}'"
        yield WRONG_CHOICE.at(called.span(first), message, f"Did you mean '{meant}'?")


def _compare(value: Value, flag: Flag, port: Port | None) -> Iterator[Diagnostic]:
    if isinstance(value.data, (dict, list)) or value.data is None or "${{" in value.text:
        return
    if str(value.data) not in (flag.choices or ()) and value.text not in (flag.choices or ()):
        related = [Related(port.key_span, f"'{port.name}' is declared here")] if port is not None else []
        yield _not_a_choice(value.span, value.text, flag, related)


def _not_a_choice(span: Span, text: str, flag: Flag, related: list[Related]) -> Diagnostic:
    choices = flag.choices or ()
    message = f"the script's {flag.names[0]} takes {', '.join(choices)}, not '{text}'"
    return WRONG_CHOICE.at(span, message, close_match(text, choices), [*related, declared(flag)])


UNKNOWN_PROGRAM = Rule("AML504", "unknown-program", "error").explained(
    summary="The name of a program is misspelt, or is that of a script.",
    why="The shell finds no such program. Scripts are started with `python`. Of other names, only those are reported "
    "that differ by a typo from python, torchrun and the like.",
    example="""\
type: command
name: train
command: ‹pyhton⇒python› train.py
environment: azureml:torch:3
""",
)


@check("command")
def _unknown_program(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for words in simple_commands(command.text):
        program = words[0]
        if program.text.endswith(".py") and "/" not in program.text and program.is_plain and "{" not in program.text:
            message = f"the shell finds no program '{program.text}': the folder of the code is not among its paths"
            span = command.span(program.start, program.end)
            yield UNKNOWN_PROGRAM.at(span, message, f"Write python {program.text}.")
        meant = only_close(program.text, _PROGRAMS)
        is_script_next = len(words) > 1 and (words[1].text.endswith((".py", ".R")) or words[1].text.startswith("-"))
        if meant is not None and program.text not in _PROGRAMS and is_script_next:
            span = command.span(program.start, program.end)
            yield UNKNOWN_PROGRAM.at(
                span, f"unknown program '{program.text}'", f"Did you mean '{meant}'?", replacement=meant
            )


FLAG_VALUE = Rule("AML505", "flag-value", "error").explained(
    summary="A flag lacks its value, has one it does not take, or has one that is not a number.",
    why="argparse exits at once. A switch (`store_true`) is either passed or not: the `True` of a boolean input after "
    "it is one argument too many.",
    example="""\
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
""",
)


@check("command")
def _flag_value(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, flags in calls_with_flags(command, context):
        yield from _wrong_values(called, flags)


def _wrong_values(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    words = called.call.arguments
    for word, follower in zip_longest(words, words[1:]):
        flag = flags.flags.get(word.text)
        if flag is None or not word.text.startswith("--"):
            continue
        if follower is not None and _REDIRECTION.search(called.text.text, word.end, follower.start):
            follower = None  # the file that output is redirected to
        if flag.takes_value is True and (follower is None or follower.text in flags.flags):
            message = f"{word.text} takes a value, but none follows it"
            yield FLAG_VALUE.at(called.span(word), message, f"Write `{word.text} VALUE`.", [declared(flag)])
        elif flag.takes_value is False and not flags.takes_words and not flags.takes_others:
            if follower is not None and (is_word(follower) or only_binding(follower.text) is not None):
                message = f"{word.text} is a switch and takes no value, such as '{follower.text}'"
                hint = f"Write {word.text} alone, or give the script a flag that takes true or false."
                yield FLAG_VALUE.at(called.span(follower), message, hint, [declared(flag)])
        elif flag.is_truth and follower is not None and _may_be_false(called, follower):
            message = f"{word.text} is `type=bool`, which makes any text true, 'False' too"
            hint = "Let the script compare the text, or use a switch (`store_true`)."
            yield FLAG_VALUE.at(called.span(follower), message, hint, [declared(flag)], severity="warning")
        elif follower is not None and _is_plain_word(follower) and not _is_number(follower.text, flag.number):
            expected = "a whole number" if flag.number == "int" else "a number"
            message = f"{word.text} takes {expected}, not '{follower.text}'"
            yield FLAG_VALUE.at(called.span(follower), message, "", [declared(flag)])


def _may_be_false(called: CalledScript, word: Word) -> bool:
    port = called.port(word)
    return word.text.lower() in ("false", "no", "0") or (port is not None and port.type == "boolean")


@check("file")
def _arguments_of_steps(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """The arguments of parallel and Spark steps, compared with the flags of their scripts."""
    calls = [called for step in script_steps(file.document) if (called := step.call()) is not None]
    for called, flags in with_sub_command(readable_calls(calls, context)):
        yield from _unknown_flags(called, flags)
        yield from _missing_flags(called, flags, "the step")
        yield from _wrong_choices(called, flags)
        yield from _wrong_values(called, flags)


@check("command")
def _numbers_of_ports(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """What an input is by default, or what its choices are, for a flag that takes a number."""
    for called, flag, port in _numbers_from_inputs(command, context):
        for value in [port.default] if port.default is not None else port.choices or ():
            yield from _number_or_not(value, flag, port)
        if not port.is_parameter and port.type:
            expected = "a whole number" if flag.number == "int" else "a number"
            message = f"{called.name} takes {expected} as {flag.names[0]}, and the input '{port.name}' is data"
            yield FLAG_VALUE.at(port.key_span, message, "Give the input the type integer or number.", [declared(flag)])


@check("pipeline")
def _numbers_of_jobs(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """What jobs set their components' inputs to, for a flag that takes a number."""
    for job in pipeline.model.jobs.values():
        component = job.component
        command = context.command_of(component) if isinstance(component, Component) else None
        if command is None or job.has_own_command:
            continue
        for _, flag, port in _numbers_from_inputs(command, context):
            given = job.inputs.get(port.name)
            if given is not None:
                yield from _number_or_not(given, flag, port)


@check("command")
def _numbers_of_searches(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """Distributions of fractions for a flag or an input that takes a whole number."""
    for holder in sweeps_of(command, context):
        drawn = {
            name: entry.value.entries["type"].value
            for name, entry in holder.entries_of("search_space").items()
            if entry.value.is_mapping and draws_fractions(entry.value)
        }
        hint = "Use randint, choice, or quniform with q: 1."
        for called, flag, name in _flags_from(command, context, ("inputs", "search_space")):
            kind = drawn.pop(name, None) if flag.number == "int" else None
            if kind is not None:
                message = f"{called.name} takes a whole number as {flag.names[0]}, and {kind.text} draws fractions"
                yield FLAG_VALUE.at(kind.span, message, hint, [declared(flag)])
        for name, kind in drawn.items():
            port = command.component.inputs.get(name) if command.is_component else None
            if port is not None and port.type == "integer":
                message = f"'{name}' is of type integer, and {kind.text} draws fractions"
                related = [Related(port.key_span, f"'{name}' is declared here")]
                yield WRONG_LITERAL.at(kind.span, message, hint, related)


@check("command")
def _choices_of_searches(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """Values of a search space that the script's `choices` do not contain."""
    for holder in sweeps_of(command, context):
        space = holder.entries_of("search_space")
        for called, flags in calls_with_flags(command, context):
            for flag, value in _values(called, flags):
                binding = only_binding(value.text)
                name = ".".join(binding.path[1:]) if binding is not None and binding.path[0] == "search_space" else ""
                values = space[name].value.get("values") if name in space and space[name].value.is_mapping else None
                for item in values.items if values is not None else ():
                    yield from _compare(item.value, flag, None)
        for called, flag, name in _flags_from(command, context, ("search_space",)):
            values = space[name].value.get("values") if name in space and space[name].value.is_mapping else None
            for item in values.items if values is not None else ():
                if (
                    type(item.data) in (float, str)
                    and "${{" not in item.text
                    and not _is_number(item.text, flag.number)
                ):
                    expected = "a whole number" if flag.number == "int" else "a number"
                    message = f"{called.name} takes {expected} as {flag.names[0]}, not '{item.text}'"
                    yield FLAG_VALUE.at(item.span, message, "", [declared(flag)])


def _numbers_from_inputs(command: ParsedCommand, context: LintContext) -> Iterator[tuple[CalledScript, Flag, Port]]:
    """The flags that take a number and get it from an input."""
    for called, flag, name in _flags_from(command, context, ("inputs",)):
        port = command.component.inputs.get(name)
        if port is not None:
            yield called, flag, port


def _flags_from(
    command: ParsedCommand, context: LintContext, scopes: tuple[str, ...]
) -> Iterator[tuple[CalledScript, Flag, str]]:
    """The flags that take a number, with the name that a binding in one of the scopes takes it from."""
    for called, flags in calls_with_flags(command, context):
        for word, follower in pairwise(called.call.arguments):
            flag = flags.flags.get(word.text)
            binding = only_binding(follower.text)
            if flag is not None and flag.number is not None and binding is not None and binding.path[0] in scopes:
                yield called, flag, ".".join(binding.path[1:])


def _number_or_not(value: Value, flag: Flag, port: Port) -> Iterator[Diagnostic]:
    # What is not even the port's own type is reported as that.
    if isinstance(value.data, (dict, list)) or value.data is None or "${{" in value.text or not port.is_parameter:
        return
    is_of_port = port.type == "string" or (port.type == "number" and _is_number(value.text, "float"))
    if is_of_port and not _is_number(value.text, flag.number):
        expected = "a whole number" if flag.number == "int" else "a number"
        message = f"the script's {flag.names[0]} takes {expected}, not '{value.text}'"
        related = [Related(port.key_span, f"'{port.name}' is declared here"), declared(flag)]
        yield FLAG_VALUE.at(value.span, message, "", related)


def _is_number(text: str, kind: str | None) -> bool:
    """Whether a text is the kind of number that a flag takes; true if it takes any text."""
    try:
        if kind is not None:
            int(text) if kind == "int" else float(text)
    except ValueError:
        return False
    return True


def _is_plain_word(word: Word) -> bool:
    """The same, and not a binding without its sign, which is reported as that."""
    return is_word(word) and "{" not in word.text


def _values(called: CalledScript, flags: ScriptFlags) -> Iterator[tuple[Flag, Word]]:
    """Each flag with choices that is passed, and its value."""
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
