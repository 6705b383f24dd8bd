"""`# trainyard: ignore[AML101] reason`: findings that the author of a file has decided to accept.

A comment at the end of a line applies to what starts on that line; one on a line of its own applies to the next line
that is not a comment. A multi-line value belongs to the line on which it starts. `ignore-file[…]` applies to the file.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import yaml

from trainyard.lint.explanation import suggest_rule
from trainyard.lint.rules.linting import BAD_IGNORE, UNUSED_IGNORE
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import slips
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.rule import Rule
from trainyard.spec.yaml_parsing import Loader, line_starts

_COMMENT = regex(r"(?<!\S)#[^\r\n\x85\u2028\u2029]*")
_LINE_BREAK = regex(r"[\r\n\x85\u2028\u2029]")
# With rules in brackets the comment is clearly for us, even without the colon or in capitals.
_DIRECTIVE = regex(
    r"#\s*(?:trainyard:|(?i:trainyard)\s*:?(?=\s*(?i:ignore(?:-file)?)\s*\[))\s*"
    r"(?P<word>[A-Za-z_-]+)\s*(?P<ids>(?:\[[^\]]*\]?[\s,]*)+)?"
)
_WORDS = ("ignore", "ignore-file")
_FORM = "Write `# trainyard: {word}[AML101] reason`."
_ID = regex(r"[^\s,\[\]]+")


@dataclass
class Ignore:
    """One rule that a comment ignores in a range of lines; `is_used` once it has matched a finding."""

    rule: str
    span: Span
    first_line: int
    last_line: int
    is_used: bool = field(default=False, compare=False)


class Ignores(NamedTuple):
    """The ignore comments of one file, and findings about them."""

    entries: tuple[Ignore, ...]
    problems: tuple[Diagnostic, ...]

    def silence(self, diagnostic: Diagnostic) -> bool:
        """Return whether a comment ignores a finding, and mark that comment as used."""
        line = diagnostic.span.line
        found = [
            entry
            for entry in self.entries
            if entry.rule == diagnostic.rule and entry.first_line <= line <= entry.last_line
        ]
        for entry in found:
            entry.is_used = True
        return bool(found)

    def unused(self) -> Iterator[Diagnostic]:
        """Yield a finding for each rule that was ignored without need."""
        for entry in self.entries:
            if not entry.is_used:
                message = f"there is no {entry.rule} here to ignore"
                hint = "Remove it, so that it does not hide a later mistake."
                yield UNUSED_IGNORE.at(entry.span, message, hint)


def read_ignores(file: Path, text: str, rules: Mapping[str, Rule]) -> Ignores | None:
    """Return the ignore comments in the text of a YAML file; None if there is no comment for Trainyard."""
    if ("trainyard:" not in text and "ignore" not in text.lower()) or _DIRECTIVE.search(text) is None:
        return None
    reader = _Reader(file, text, rules)
    for start, comment in _comments(text, reader.scalars):
        reader.read(start, comment)
    return Ignores(tuple(reader.entries), tuple(reader.problems))


class _Scalar(NamedTuple):
    """A scalar's range in the text. No comment can start between `body` and `end`."""

    body: int
    end: int
    first_line: int
    last_line: int


class _Reader:
    """Reads the comments of one text."""

    def __init__(self, file: Path, text: str, rules: Mapping[str, Rule]) -> None:
        self._file = file
        self._text = text
        self._rules = rules
        self._starts = line_starts(text)
        self.scalars = _scalars(text)
        self.entries: list[Ignore] = []
        self.problems: list[Diagnostic] = []

    def read(self, start: int, comment: str) -> None:
        """Read a comment, if it is for us."""
        for directive in _DIRECTIVE.finditer(comment):
            self._read_directive(start, directive)

    def _read_directive(self, start: int, directive: re.Match[str]) -> None:
        word, ids = directive["word"].lower(), (directive["ids"] or "").rstrip(", \t")
        if word not in _WORDS:
            span = self._span(start + directive.start("word"), start + directive.end("word"))
            meant = next((known for known in _WORDS if slips(word, known) <= 1), None)
            hint = f"Did you mean '{meant}'?" if meant else _FORM.format(word=_WORDS[0])
            self._problem(span, f"unknown comment 'trainyard: {directive['word']}'", hint)
        elif not ids.endswith("]") or _ID.search(ids) is None:
            span = self._span(start + directive.start("word"), start + directive.start("word") + len(word + ids))
            self._problem(span, f"'{word}' does not name a rule", _FORM.format(word=word))
        else:
            first, last = (1, len(self._starts)) if word == "ignore-file" else self._lines_meant(start)
            for found in _ID.finditer(ids):
                offset = start + directive.start("ids") + found.start()
                span = self._span(offset, offset + len(found[0]))
                if found[0] in self._rules:
                    self.entries.append(Ignore(found[0], span, first, last))
                else:
                    self._problem(span, f"unknown rule '{found[0]}'", suggest_rule(found[0], self._rules))

    @cached_property
    def _next_that_is_no_comment(self) -> list[int]:
        """By the number of each line: itself, or the next below it that is not a comment (the last at least)."""
        following = [len(self._starts)] * (len(self._starts) + 1)
        for line in range(len(self._starts) - 1, 0, -1):
            is_comment = self._line_text(line).lstrip().startswith("#")
            following[line] = following[line + 1] if is_comment else line
        return following

    def _lines_meant(self, start: int) -> tuple[int, int]:
        """Return the lines that a comment at an offset applies to: its own, or the next that is not a comment."""
        line = self._line_of(start)
        if not self._line_text(line)[: start - self._starts[line - 1]].strip():
            line = self._next_that_is_no_comment[line]
        return line, max((scalar.last_line for scalar in self.scalars if scalar.first_line == line), default=line)

    def _line_text(self, line: int) -> str:
        end = self._starts[line] if line < len(self._starts) else len(self._text)
        return self._text[self._starts[line - 1] : end]

    def _line_of(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def _span(self, start: int, end: int) -> Span:
        line = self._line_of(start)
        column = start - self._starts[line - 1] + 1
        return Span(self._file, line, column, line, column + end - start)

    def _problem(self, span: Span, message: str, hint: str) -> None:
        self.problems.append(BAD_IGNORE.at(span, message, hint))


def _scalars(text: str) -> Sequence[_Scalar]:
    """Return every scalar of a text, in order, up to the first syntax error."""
    found = []
    try:
        for token in yaml.scan(text, Loader=Loader):
            if isinstance(token, yaml.ScalarToken):
                start, end = token.start_mark, token.end_mark
                body = start.index
                last_line = end.line + 1
                if token.style in ("|", ">"):
                    # A comment may follow the indicator; below it is text, up to where the next line starts.
                    line_break = _LINE_BREAK.search(text, start.index)
                    body = line_break.start() if line_break else len(text)
                    last_line = end.line if end.column == 0 else end.line + 1
                found.append(_Scalar(body, end.index, start.line + 1, last_line))
    except yaml.YAMLError:
        # Reading the document reports it (AML002); comments before it still apply.
        pass
    return found


def _comments(text: str, scalars: Sequence[_Scalar]) -> Iterator[tuple[int, str]]:
    """Yield each comment with its offset: what starts with '#' outside scalars."""
    bodies = [scalar.body for scalar in scalars]
    for match in _COMMENT.finditer(text):
        index = bisect_right(bodies, match.start()) - 1
        if index < 0 or match.start() >= scalars[index].end:
            yield match.start(), match[0]
