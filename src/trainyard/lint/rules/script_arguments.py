"""The arguments that a command passes to its Python script, compared with those that the script accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from trainyard.lint.checks import LintContext, LintedFile, check, known_words, number_of
from trainyard.lint.rules.shell_text import is_cut_short
from trainyard.lint.rules.sweeps import draws_fractions, sweeps_of
from trainyard.lint.script_calls import (
    calls_with_flags,
    declared,
    given_flags,
    is_word,
    limited_values,
    other_command,
    readable_calls,
    script_steps,
    with_sub_command,
)
from trainyard.lint.scripts.flags import Flag, ScriptFlags
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import close_match, closest, did_you_mean, only_close
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.documents import Value
from trainyard.spec.expressions import name_bound, only_binding
from trainyard.spec.literals import WRONG_LITERAL
from trainyard.spec.model import Port
from trainyard.spec.parsed import ParsedCommand, ParsedPipeline
from trainyard.spec.rule import Rule
from trainyard.spec.shell_lexer import Word, simple_commands
from trainyard.spec.shell_words import CalledScript

_NUMBERS = {None: "a string", "int": "a whole number", "float": "a number"}
_REDIRECTION = regex("[<>]")
_UNCLOSED = regex(r"\$\{\{(?![^{}]*\}\})|\$\{\{[^{}]*\$\{\{")
_DASHES = ("–", "—")
_OF_TRAINER: list[str] = known_words("training_arguments")
_PROGRAMS = ("python", "python3", "torchrun", "deepspeed", "mpirun", "accelerate", "horovodrun", "Rscript")


UNKNOWN_FLAG = Rule("AML501", "unknown-flag", "error", is_let_pass=True).explained(
    summary="The command passes a flag that the script does not have.",
    why="Flags are read from the script's source, without running it: argparse, click, typer, transformers' "
    "HfArgumentParser, and the dataclasses of trainyard.steps. Scripts that cannot be read this way are not checked.",
)


@check("command")
def _unknown_flag(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    yield from _typographic_dashes(command)
    for called, flags in calls_with_flags(command, context):
        yield from _unknown_flags(called, flags)


def _unknown_flags(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    for word in given_flags(called):
        name = word.text.partition("=")[0]
        if "$" in name or flags.find(name) is not None or (flags.for_trainer and _is_of_trainer(name)):
            continue
        if flags.takes_others:
            yield from _slip(called, word, name, flags)
            continue
        if not name.startswith("--") and (f"-{name}" not in flags.flags or name[:2] in flags.flags):
            continue
        known = [flag for flag in flags.flags if flag.startswith("--")]
        known += [f"--{each}" for each in _OF_TRAINER] if flags.for_trainer else []
        meant = closest(name, known)
        span = called.span(Word(name, word.start, word.start + len(name)))
        message = f"{called.name} has no flag {name}"
        related = [declared(flags.flags[meant])] if meant is not None and meant in flags.flags else []
        hint = did_you_mean(name, known)
        yield UNKNOWN_FLAG.at(span, message, hint, related, only_close(name, known))


def _is_of_trainer(name: str) -> bool:
    """Whether TrainingArguments has a flag, of which argparse also takes the beginning."""
    word = name.lstrip("-").replace("-", "_")
    return any(known.startswith((word, word.removeprefix("no_"))) for known in _OF_TRAINER)


def _slip(called: CalledScript, word: Word, name: str, flags: ScriptFlags) -> Iterator[Diagnostic]:
    """A flag that is one slip from one of the script's, which leaves unknown flags alone."""
    given = {other.text.partition("=")[0] for other in called.call.arguments}
    free = [flag for flag in flags.flags if flag.startswith("--") and flag not in given]
    meant = only_close(name, free) if name.startswith("--") else None
    if meant is not None:
        span = called.span(Word(name, word.start, word.start + len(name)))
        message = f"{called.name} has no flag {name}, ignores it, and continues without {meant}"
        if flags.task_folder is not None:
            message = f"{called.name} has no flag {name}, and refuses it unless its task has one"
        related = [declared(flags.flags[meant])]
        yield UNKNOWN_FLAG.at(span, message, f"Did you mean '{meant}'?", related, severity="warning")


def _typographic_dashes(command: ParsedCommand) -> Iterator[Diagnostic]:
    """Flags whose dashes a word processor has replaced."""
    if not any(dash in command.text for dash in _DASHES):
        return
    for words in simple_commands(command.text):
        for word, follower in zip_longest(words[1:], words[2:]):
            name, end = word.text[1:], word.end
            if not name and follower is not None and words[0].text in _PROGRAMS:
                # "— epochs": some pages put a space after the dash.
                name, end = follower.text, follower.end
            if word.text.startswith(_DASHES) and name[:1].isalpha() and not word.is_quoted:
                right = f"--{name}"
                message = f"'{word.text}' starts with a typographic dash, so the script does not see a flag"
                yield UNKNOWN_FLAG.at(command.span(word.start, end), message, f"Write {right}.", replacement=right)


MISSING_FLAG = Rule("AML502", "missing-flag", "error", is_let_pass=True).explained(
    summary="The command does not pass a flag that the script requires.",
    why="The script exits at once, after the cluster has started and the data is mounted.",
)


@check("command")
def _missing_flag(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, flags in readable_calls(context.calls_of(command), context):
        if flags.needs_command and (not called.call.arguments or _gives_no_command(called, flags)):
            message = f"{called.name} requires a command before its flags, and gets none"
            hint = f"Known commands: {', '.join(flags.commands)}."
            yield MISSING_FLAG.at(called.place, message, hint)
    for called, flags in calls_with_flags(command, context):
        missing = list(_missing_flags(called, flags, "the command"))
        if missing and not is_cut_short(command):
            yield from missing


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
        is_input = name_bound(word.text, "inputs") is not None
        if is_input and not before.startswith("-") and not word.is_quoted:
            port = called.port(word)
            if port is None or (port.type == "string" and port.choices is None):
                return True
        before = word.text
    return False


WRONG_CHOICE = Rule("AML503", "wrong-choice", "error", is_let_pass=True).explained(
    summary="A value is not one of the script's choices.",
    why="The component offers, or a job sets, a value that the script's `choices` do not contain.",
)


@check("command")
def _values(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, flags in readable_calls(context.calls_of(command), context):
        yield from _unknown_command(called, flags)
    for called, flags in calls_with_flags(command, context):
        yield from _wrong_words(called, flags)
        yield from _values_of_words_and_ports(called, flags)


def _values_of_words_and_ports(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    """What the command passes to flags, and what inputs that it passes are by default, or may be."""
    for flag, word in limited_values(called, flags):
        if only_binding(word.text) is None:
            is_literal = word.is_plain and "${{" not in word.text
            if is_literal and flag.choices is not None and word.text not in flag.choices:
                yield _not_a_choice(called.span(word), word.text, flag, [])
            continue
        port = called.port(word)
        if port is None:
            continue
        for value in port.choices or filter(None, [port.default]):
            yield from _judged(value, flag, port)
        if flag.number is not None and not port.is_parameter and port.type:
            message = (
                f"{called.name} takes {_NUMBERS[flag.number]} as {flag.names[0]}, and the input '{port.name}' is data"
            )
            yield FLAG_VALUE.at(port.key_span, message, "Give the input the type integer or number.", [declared(flag)])


@check("pipeline")
def _values_of_jobs(pipeline: ParsedPipeline, context: LintContext) -> Iterator[Diagnostic]:
    """What jobs set their components' inputs to."""
    for job, command in context.commands_of(pipeline):
        if command.component.code is None:
            continue
        for called, flags in calls_with_flags(command, context):
            for flag, word in limited_values(called, flags):
                name = name_bound(word.text, "inputs") or ""
                given, port = job.inputs.get(name), command.component.inputs.get(name)
                if given is not None and port is not None and port.choices is None:
                    yield from _judged(given, flag, port)


@check("command")
def _values_of_searches(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """What the search space of a sweep has for flags: choices of their own, and distributions of fractions."""
    for sweep in sweeps_of(command, context):
        space = {name: entry.value for name, entry in sweep.entries_of("search_space").items()}
        drawn = {name: node.entries["type"].value for name, node in space.items() if draws_fractions(node)}
        hint = "Use randint, choice, or quniform with q: 1."
        for called, flags in calls_with_flags(command, context):
            for flag, word in limited_values(called, flags):
                name = name_bound(word.text, "search_space") or ""
                for item in space[name].items_of("values") if name in space else ():
                    yield from _judged(item.value, flag, None)
                kind = drawn.pop(name or name_bound(word.text, "inputs") or "", None) if flag.number == "int" else None
                if kind is not None:
                    message = f"{called.name} takes a whole number as {flag.names[0]}, and {kind.text} draws fractions"
                    yield FLAG_VALUE.at(kind.span, message, hint, [declared(flag)])
        for name, kind in drawn.items():
            port = command.component.inputs.get(name) if command.is_component else None
            if port is not None and port.type == "integer":
                message = f"'{name}' is of type integer, and {kind.text} draws fractions"
                yield WRONG_LITERAL.at(kind.span, message, hint, [port.declared])


def _judged(value: Value, flag: Flag, port: Port | None) -> Iterator[Diagnostic]:
    """A literal that a flag gets, and that is none of its choices, or not the kind of number that it takes."""
    if isinstance(value.data, (dict, list)) or value.data is None or "${{" in value.text:
        return
    related = [port.declared] if port is not None else []
    if flag.choices is not None and str(value.data) not in flag.choices and value.text not in flag.choices:
        yield _not_a_choice(value.span, value.text, flag, related)
    # What is not even the port's own type is reported as that.
    is_of_port = port is None or port.type == "string" or (port.type == "number" and number_of(value) is not None)
    if is_of_port and not _suits(value.text, flag):
        message = f"the script's {flag.names[0]} takes {_NUMBERS[flag.number]}, not '{value.text}'"
        yield FLAG_VALUE.at(value.span, message, "", [*related, declared(flag)])


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


def _not_a_choice(span: Span, text: str, flag: Flag, related: list[Related]) -> Diagnostic:
    choices = flag.choices or ()
    message = f"the script's {flag.names[0]} takes {', '.join(choices)}, not '{text}'"
    return WRONG_CHOICE.at(span, message, close_match(text, choices), [*related, declared(flag)])


UNKNOWN_PROGRAM = Rule("AML504", "unknown-program", "error", is_let_pass=True).explained(
    summary="The name of a program is misspelt, or is that of a script or a variable.",
    why="The shell finds no such program. Scripts are started with `python`. Variables are set without spaces around "
    "the `=`. Other names are only reported if they differ by a typo from python, torchrun and the like.",
)


@check("command")
def _unknown_program(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for words in simple_commands(command.text):
        program = words[0]
        yield from _blank_in_assignment(command, words)
        if program.text.endswith(".py") and program.is_plain and not set(program.text) & set("/{="):
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


def _blank_in_assignment(command: ParsedCommand, words: Sequence[Word]) -> Iterator[Diagnostic]:
    """`EPOCHS = 3`, `EPOCHS= 3`, `EPOCHS =3` and `export EPOCHS = 3`, of which the shell sets no variable to 3."""
    name, *others = words[words[0].text == "export" :] or words
    value = others[0].text if others else ""
    is_set_to_nothing = name is words[0] and name.text.endswith("=") and value.replace(".", "").isdecimal()
    is_condition = value.startswith("==") or any(word.text == "]]" for word in words)
    if not is_condition and name.text.removesuffix("=").isidentifier() and (value.startswith("=") or is_set_to_nothing):
        taken = value if is_set_to_nothing else name.text
        message = f"the shell takes '{taken}' for a program: a variable is set without spaces around the ="
        if name is not words[0]:
            message = "export refuses the = : a variable is set without spaces around it"
        yield UNKNOWN_PROGRAM.at(command.span(name.start, others[0].end), message, "Remove the spaces.")


FLAG_VALUE = Rule("AML505", "flag-value", "error", is_let_pass=True).explained(
    summary="A flag lacks its value, has one it does not take, or has one that is not a number.",
    why="argparse exits at once. A switch (`store_true`) is either passed or not: the `True` of a boolean input after "
    "it is one argument too many.",
)


def _wrong_words(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
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
            message = f"{word.text} is `type=bool`, which makes any string true, 'False' too"
            hint = "Let the script compare the text, or use a switch (`store_true`)."
            yield FLAG_VALUE.at(called.span(follower), message, hint, [declared(flag)], severity="warning")
        elif follower is not None and is_word(follower) and not _suits(follower.text, flag):
            message = f"{word.text} takes {_NUMBERS[flag.number]}, not '{follower.text}'"
            yield FLAG_VALUE.at(called.span(follower), message, "", [declared(flag)])


def _may_be_false(called: CalledScript, word: Word) -> bool:
    port = called.port(word)
    return word.text.lower() in ("false", "no", "0") or (port is not None and port.type == "boolean")


@check("file")
def _arguments_of_steps(file: LintedFile, context: LintContext) -> Iterator[Diagnostic]:
    """The arguments of parallel and Spark steps, compared with the flags of their scripts."""
    calls = [called for step in script_steps(file) if (called := step.call()) is not None]
    for called, flags in with_sub_command(readable_calls(calls, context)):
        yield from _unknown_flags(called, flags)
        yield from _missing_flags(called, flags, "the step")
        yield from _wrong_words(called, flags)
        yield from _values_of_words_and_ports(called, flags)


def _suits(text: str, flag: Flag) -> bool:
    """Whether a string is the kind of number that a flag takes; true if it takes any string."""
    try:
        if flag.number is not None and "{" not in text:  # a binding without its sign is reported as that
            int(text) if flag.number == "int" else float(text)
    except ValueError:
        return False
    return True
