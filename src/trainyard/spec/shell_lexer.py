"""A command as the shell splits it: words with their offsets, comments, here-documents, and its reserved words.

Bindings are never split. What only a shell could know (variables, command substitution) is left as it is written, so
that the `$` remains visible.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from trainyard.settings.regex import regex

# Not `<(` and `>(`, which begin a word: bash puts a file's name there.
_OPERATORS = regex(r"&&|\|\||[;|&\n)]|\((?!\()|[0-9]?>(?!\()>?(?:&[0-9])?|<<<|<<-?|<(?!\()")
_BLANKS = regex(r"[ \t\r]+|\\\r?\n")
_COMMENT = regex(r"#[^\n]*")
_PLAIN = regex(r"[^ \t\r\n'\"\\$`;|&<>()\]]+")
_DELIMITER = regex(r"[ \t]*([^\s;|&<>()]+)")
# The bound keeps a command that consists of openings from being searched to its end for each of them.
BINDING = regex(r"\$\{\{.{0,500}?\}\}", re.DOTALL)
_SUBSTITUTION = regex(r"[$<>]\(|`|\$[A-Za-z_{](?!\{)")
_QUOTE_OR_ESCAPE = regex(r"[\\'\"]")
_GROUP = regex(r"[$<>(]\(|`")
_IN_GROUP = regex(r"\\|'|\"|`|\$\(|[()]")
# What stands before a command as a word of its own, and is not a program.
_BEFORE_COMMANDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{", "!", "time"})
_SHELLS = frozenset({"bash", "sh", "/bin/bash", "/bin/sh", "zsh"})
_RUNS_TEXT = regex(r"-[a-z]*c")
_OTHER_RESERVED = frozenset({"for", "select", "case", "fi", "done", "esac", "}"})


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
        return _SUBSTITUTION.search(BINDING.sub("", self.text)) is None


class ShellText(NamedTuple):
    """What a command consists of. Comments and here-documents are offsets, the latter with their last line.

    `reserved`: reserved words and parentheses, in their order. `endless`: here-documents whose last line is missing.
    """

    commands: list[list[Word]]
    comments: list[tuple[int, int]]
    documents: list[tuple[int, int]]
    reserved: list[Word]
    endless: list[Word]


def simple_commands(command: str) -> list[list[Word]]:
    """The words of a command, one list for each part that ends with `&&`, `;`, `|`, a parenthesis or a line end.

    What `bash -c "…"` runs follows it as parts of their own.
    """
    return read_shell(command).commands


@lru_cache(maxsize=4096)
def read_shell(command: str) -> ShellText:
    """Return what a command consists of."""
    text = ShellText([[]], [], [], [], [])
    awaited: list[Word] = []
    is_optional = False
    position = 0
    while position < len(command):
        if blanks := _BLANKS.match(command, position):
            position = blanks.end()
        elif command.startswith("$[[", position) or (is_optional and command.startswith("]]", position)):
            is_optional = command[position] == "$"
            position += 3 if is_optional else 2
        elif comment := _COMMENT.match(command, position):
            text.comments.append(comment.span())
            position = comment.end()
        elif operator := _OPERATORS.match(command, position):
            position = operator.end()
            sign = operator[0].lstrip("0123456789")
            if sign in ("<<", "<<-") and (delimiter := _DELIMITER.match(command, position)):
                awaited.append(Word(delimiter[1], operator.start(), delimiter.end()))
                position = delimiter.end()
            elif sign[0] not in "<>":
                text.commands.append([])
            if sign == "\n" and awaited:
                position = _read_documents(command, position, awaited, text)
                awaited = []
            elif sign in ("(", ")"):
                text.reserved.append(Word(sign, operator.start(), position))
        else:
            word = _word(command, position, is_optional)
            position = word.end
            is_first = not text.commands[-1] and command[word.start] == word.text[:1]
            if is_first and (word.text in _BEFORE_COMMANDS or word.text in _OTHER_RESERVED):
                text.reserved.append(word)
            if not is_first or word.text not in _BEFORE_COMMANDS:
                text.commands[-1].append(word)
    text.endless.extend(awaited)
    commands = [part for words in text.commands if words for part in (words, *_run_by_shell(words, command))]
    return text._replace(commands=commands)


def _read_documents(command: str, position: int, awaited: list[Word], text: ShellText) -> int:
    """Where the command goes on after the here-documents that begin at a line."""
    for opened in awaited:
        start, delimiter = position, re.sub(r"[\\'\"]", "", opened.text)
        tabs = "\t*" if command.startswith("<<-", opened.start) else ""
        last = re.compile(rf"^{tabs}{re.escape(delimiter)}$", re.MULTILINE).search(command, position)
        if last is None:
            text.endless.append(opened)
        position = last.end() if last is not None else len(command)
        text.documents.append((start, position))
    return position


def words_with_values(words: Sequence[Word]) -> Iterator[tuple[str, Word, Word | None]]:
    """Each word as if it were a flag: its name, itself, and the value after its `=`, or else the word that follows."""
    for word, follower in zip_longest(words, words[1:]):
        name, equals, value = word.text.partition("=")
        yield name, word, Word(value, word.end - len(value), word.end) if equals else follower


def text_of_shell(words: list[Word]) -> Word | None:
    """The word that `bash -c` runs; None for any other command."""
    option = next((at for at, word in enumerate(words) if _RUNS_TEXT.fullmatch(word.text)), len(words))
    is_shell = words[0].text in _SHELLS and option + 1 < len(words)
    has_options_alone = all(word.text.startswith("-") or word.text == "pipefail" for word in words[1:option])
    return words[option + 1] if is_shell and has_options_alone else None


def _run_by_shell(words: list[Word], command: str) -> list[list[Word]]:
    """The commands in the text that `bash -c "…"` runs."""
    run = text_of_shell(words) if words[0].text in _SHELLS else None
    if run is None or command[run.start : run.end] not in (f"'{run.text}'", f'"{run.text}"') or "\\" in run.text:
        return []
    shift = run.start + 1
    inner = simple_commands(run.text)
    return [[word._replace(start=word.start + shift, end=word.end + shift) for word in part] for part in inner]


def _word(command: str, start: int, is_optional: bool) -> Word:
    parts: list[str] = []
    is_quoted = False
    position = start
    while position < len(command):
        character = command[position]
        if plain := _PLAIN.match(command, position):
            parts.append(plain[0])
            position = plain.end()
        elif character == "$" and (binding := BINDING.match(command, position)):
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
        elif _GROUP.match(command, position) or command.startswith("=(", position - 1):
            inside = position + (2 if character in "$<>" else 1)
            end = _end_of_group(command, inside, "`" if character == "`" else ")") + 1
            parts.append(command[position:end])
            position = end
        elif character in " \t\r\n;|&<>\\()" or (is_optional and command.startswith("]]", position)):
            break
        else:
            parts.append(character)
            position += 1
    return Word("".join(parts), start, max(min(position, len(command)), start + 1), is_optional, is_quoted)


def quoted_parts(command: str) -> tuple[list[tuple[int, int]], int | None]:
    """Return where quoted strings and escaped letters are, and where a quote begins that is never closed."""
    parts: list[tuple[int, int]] = []
    position = 0
    while (sign := _QUOTE_OR_ESCAPE.search(command, position)) is not None:
        start, position = sign.start(), min(sign.end() + 1, len(command))
        if sign[0] != "\\":
            position = _closing_quote(command, start) + 1
        if position > len(command):
            return parts, start
        parts.append((start, position))
    return parts, None


def _closing_quote(command: str, opening: int) -> int:
    if command[opening] == '"':
        return _end_of_group(command, opening + 1, '"')
    closing = command.find("'", opening + 1)
    return closing if closing >= 0 else len(command)


def _end_of_group(command: str, position: int, closer: str) -> int:
    """Where a quote, a substitution or an array that is open at a place is closed; the end if it never is."""
    closers = [closer]
    while (sign := _IN_GROUP.search(command, position)) is not None:
        position = sign.end()
        if sign[0] == "\\":
            position += 1
        elif sign[0] == closers[-1]:
            closers.pop()
            if not closers:
                return sign.start()
        elif sign[0] == "'" and closers[-1] != '"':
            position = _closing_quote(command, sign.start()) + 1
        elif sign[0] == "$(" or (sign[0] == "(" and closers[-1] == ")"):
            closers.append(")")
        elif sign[0] in ('"', "`"):
            closers.append(sign[0])
    return len(command)
