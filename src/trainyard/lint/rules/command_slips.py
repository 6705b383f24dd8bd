"""Slips in the words of a command: a space too few or too many, a flag passed twice, programs left alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from trainyard.lint.checks import LintContext, check
from trainyard.lint.rules.script_arguments import FLAG_VALUE
from trainyard.lint.script_calls import calls_with_flags, declared, given_flags
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Related
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.shell_lexer import Word, simple_commands
from trainyard.spec.shell_words import python_calls

_FLAG_WITHOUT_BLANK = regex(r"(?:\.py|\}\})(?=--[A-Za-z])")
_IN_BACKGROUND = regex(r"(?<![&>|])&(?=\s*\Z)")
_INSTALLERS = frozenset({"pip", "pip3", "conda", "mamba", "apt-get"})
_AND_MORE = regex(r"[ \t]*(&)(?![&>])\s*[^\s\"')]")
_WAITS = regex(r"\b(?:wait|fg)\b|\$!")


REPEATED_FLAG = Rule("AML512", "repeated-flag", "warning").explained(
    summary="The command passes a flag twice.",
    why="argparse keeps the last value and drops the others silently. Flags that collect values "
    '(`action="append"`, click\'s `multiple=True`) are not reported, nor are scripts whose flags cannot be read.',
)


@check("command")
def _repeated_flag(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for called, flags in calls_with_flags(command, context):
        first_place: dict[tuple[str, ...], Word] = {}
        for word in given_flags(called):
            flag = flags.find(word.text.partition("=")[0])
            # A flag in `$[[ … ]]` may be there to replace the one before it.
            if flag is None or flag.takes_value is not True or word.is_optional:
                continue
            earlier = first_place.setdefault(flag.names, word)
            if earlier is not word:
                message = f"{word.text.partition('=')[0]} is passed twice, and {called.name} keeps only this one"
                related = [Related(called.span(earlier), "it is passed here first"), declared(flag)]
                yield REPEATED_FLAG.at(called.span(word), message, "Remove one of them.", related)


@check("command")
def _blank_after_equals(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    """`--epochs= 3`, which is an empty string for the flag, and one more argument."""
    for call in python_calls(command.text):
        for word, follower in pairwise(call.arguments):
            is_flag = word.text.startswith("--") and word.text.endswith("=") and not word.is_quoted
            if is_flag and "$" not in word.text and not follower.text.startswith("-"):
                message = f"{word.text} passes an empty string: the value after the space is another argument"
                hint = f"Write {word.text}{follower.text}, without the space."
                yield FLAG_VALUE.at(command.span(word.start, word.end), message, hint)


MISSING_BLANK = Rule("AML558", "missing-blank", "error").explained(
    summary="A space is missing before a flag: `train.py--epochs`, `${{inputs.x}}--seed`.",
    why="The shell takes both for one word, so that the script is not found, or the flag is part of a value.",
)


@check("command")
def _missing_blank(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    for match in _FLAG_WITHOUT_BLANK.finditer(command.text):
        message = f"there is no space between {'a binding' if match[0] == '}}' else 'the script'} and this flag"
        yield MISSING_BLANK.at(command.span(match.end(), match.end() + 2), message, "Put a space before it.")


LEFT_IN_BACKGROUND = Rule("AML559", "left-in-background", "warning").explained(
    summary="Nothing waits for a program that is followed by a single `&`.",
    why="At the end of the command, the job ends when the shell does, which is at once; the program is ended with it, "
    "and the job counts as completed. After `pip install … &`, the next program starts before the packages are there.",
)


@check("command")
def _left_in_background(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    match, calls = _IN_BACKGROUND.search(command.text), list(python_calls(command.text))
    if not calls or _WAITS.search(command.text):
        return
    parts = simple_commands(command.text)
    for words in parts:
        sign = _AND_MORE.match(command.text, words[-1].end)
        if sign is not None and words[0].text in _INSTALLERS and "install" in [word.text for word in words]:
            message = "nothing waits for this installation: what follows it starts at once"
            yield LEFT_IN_BACKGROUND.at(command.span(*sign.span(1)), message, "Write &&.")
    if match is not None and calls[-1].script.start >= parts[-1][0].start:
        message = "the job ends at once, and this program with it"
        yield LEFT_IN_BACKGROUND.at(command.span(*match.span()), message, "Remove the &, or end with `wait`.")
