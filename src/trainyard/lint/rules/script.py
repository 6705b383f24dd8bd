"""The flags that a command gives its Python script, held against those that the script takes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainyard.lint.rule import Example, Rule
from trainyard.lint.script_flags import Flag, ScriptFlags
from trainyard.lint.scripts import CalledScript
from trainyard.lint.shell_words import Word, simple_commands
from trainyard.lint.surroundings import Surroundings
from trainyard.spec.diagnostic import Diagnostic, Related, Span
from trainyard.spec.expressions import only_binding
from trainyard.spec.model import Port, Value
from trainyard.spec.seen import SeenCommand, SeenPipeline
from trainyard.suggestions import close_match, closest, did_you_mean, only_close

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
RULES = (UNKNOWN_FLAG, MISSING_FLAG, WRONG_CHOICE, UNKNOWN_PROGRAM)

_LONG_WITH_ONE_DASH = re.compile(r"-[A-Za-z][A-Za-z0-9_-]{2,}(?:=.*)?", re.DOTALL)
_PROGRAMS = ("python", "python3", "torchrun", "deepspeed", "mpirun", "accelerate", "horovodrun", "Rscript")


def check_command(seen: SeenCommand, surroundings: Surroundings) -> Iterator[Diagnostic]:
    """Flags of the calls in a command."""
    yield from _mistyped_programs(seen)
    for called, flags in _readable_calls(seen, surroundings):
        yield from _unknown_flags(called, flags)
        yield from _missing_flags(called, flags)
        for flag, value in _values(called, flags):
            yield from _wrong_choices(called, flag, value, seen)


def _mistyped_programs(seen: SeenCommand) -> Iterator[Diagnostic]:
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
            yield UNKNOWN_PROGRAM.found(span, message, f"Did you mean '{meant}'?", replacement=meant)


def check_pipeline(seen: SeenPipeline, surroundings: Surroundings) -> Iterator[Diagnostic]:
    """What jobs set their components' inputs to, held against the choices of the script that gets it."""
    for job in seen.scope.jobs.values():
        component = job.component
        if component is None or job.has_own_command or component.code is None:
            continue
        command = surroundings.command_of(component)
        for called, flags in _readable_calls(command, surroundings) if command is not None else ():
            for flag, value in _values(called, flags):
                binding = only_binding(value.text)
                given = job.inputs.get(".".join(binding.path[1:])) if binding and binding.path[0] == "inputs" else None
                port = component.inputs.get(".".join(binding.path[1:])) if binding is not None else None
                if given is not None and port is not None and port.choices is None:
                    yield from _not_among(given, flag, port)


def _readable_calls(seen: SeenCommand, surroundings: Surroundings) -> Iterator[tuple[CalledScript, ScriptFlags]]:
    for called in surroundings.calls_of(seen):
        flags = surroundings.flags_of(called.file, called.root) if called.file is not None else None
        if flags is not None:
            yield called, flags


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
        yield UNKNOWN_FLAG.found(span, message, did_you_mean(name, known), related, replacement=only_close(name, known))


def _missing_flags(called: CalledScript, flags: ScriptFlags) -> Iterator[Diagnostic]:
    # What a variable or a list of arguments brings along cannot be seen.
    if any(not word.is_plain or word.text.startswith("@") for word in called.call.arguments):
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
            yield MISSING_FLAG.found(
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


def _wrong_choices(called: CalledScript, flag: Flag, value: Word, seen: SeenCommand) -> Iterator[Diagnostic]:
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
    return WRONG_CHOICE.found(span, message, close_match(text, choices), [*related, _declared(flag)])


def _declared(flag: Flag) -> Related:
    return Related(Span(flag.file, flag.line, 1, flag.line, 2), f"{flag.names[0]} is declared here")
