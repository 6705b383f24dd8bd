"""Commands that no shell can read: open quotes, operators without a command, characters of a word processor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trainyard.lint.checks import check
from trainyard.lint.context import LintContext
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.expressions import Binding, ExpressionError, bindings_in
from trainyard.spec.parsed import ParsedCommand
from trainyard.spec.rule import Rule
from trainyard.spec.shell_words import simple_commands

_QUOTED = re.compile(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_QUOTE = re.compile("['\"]")
_LEADING = re.compile(r"\A\s*(&&|\|\||\||;)")
_DOUBLED = re.compile(r"(?:&&|\|\|)\s*(&&|\|\||;|\|)|(?<!;);[ \t]+(;)(?!;)")
_TRAILING = re.compile(r"(&&|\|\||(?<!>)\|)\s*\Z")
_WORD_PROCESSOR = re.compile("[\u201c\u201d\u2018\u2019\u201e\u00a0]")
_NAMES = {"\u00a0": "a no-break space"}
# Texts within a command have rules of their own, and so have `for ((; ; ))`, `$'…'` and what is commented out.
_OTHER_SYNTAX = re.compile(r"<<|\(\(|\$'|\besac\b|(?<!\S)#")


SHELL_SYNTAX = Rule("AML561", "shell-syntax", "error").explained(
    summary="The shell cannot read the command: an open quote, an operator without a command, typographic quotes.",
    why="The job ends at once, after its machine has started. Word processors and chats replace straight quotes and "
    "blanks with others, which the shell takes for letters.",
    example="""\
type: command
name: train
code: ./src
command: pip install pandas==2.2.3 && ‹‸&& ⇒›python train.py
environment: azureml:torch:3
=== src/train.py
print("training")
""",
)


@check("command")
def _shell_syntax(command: ParsedCommand, context: LintContext) -> Iterator[Diagnostic]:
    try:
        bindings = bindings_in(command.text)
    except ExpressionError:
        return  # reported as that
    if command.command is None or _OTHER_SYNTAX.search(command.text):
        return
    bare, opened = _without_quoted(_without_bindings(command.text, bindings))
    if opened is not None:
        message = f"the quote {command.text[opened]} that begins here is not closed"
        yield SHELL_SYNTAX.at(command.span(opened, opened + 1), message, "Close it, or remove it.")
        return
    operator = _LEADING.search(bare) or _DOUBLED.search(bare) or _TRAILING.search(bare)
    if operator is not None:
        at = next(group for group in (1, *range(2, len(operator.groups()) + 1)) if operator[group] is not None)
        message = f"there is no command on one side of this {operator[at]}"
        yield SHELL_SYNTAX.at(command.span(*operator.span(at)), message, "Remove it.")
    strange = _WORD_PROCESSOR.search(bare)
    if strange is not None and not _is_printed(command.text, strange.start()):
        what = _NAMES.get(strange[0], f"the typographic quote {strange[0]}")
        message = f"{what} is a letter to the shell, and becomes part of the word"
        hint = "Write a blank." if strange[0] in _NAMES else "Write a straight quote."
        yield SHELL_SYNTAX.at(command.span(*strange.span()), message, hint)


def _is_printed(text: str, position: int) -> bool:
    """Whether a place of a command is in a word that echo prints, which may have any letters."""
    return any(words[0].text == "echo" and words[0].end < position < words[-1].end for words in simple_commands(text))


def _without_quoted(text: str) -> tuple[str, int | None]:
    """A command with `x` for what is quoted or escaped, and where a quote begins that is never closed."""
    bare = _QUOTED.sub(lambda quoted: "x" * len(quoted[0]), text)
    opened = _QUOTE.search(bare)
    return bare, opened.start() if opened is not None else None


def _without_bindings(text: str, bindings: Sequence[Binding]) -> str:
    """A command with `x` for its bindings, whose values may not be known."""
    parts, position = [], 0
    for binding in bindings:
        parts += [text[position : binding.start], "x" * (binding.end - binding.start)]
        position = binding.end
    return "".join([*parts, text[position:]])
