"""From a file's bytes to PyYAML's nodes: how a file is read, what is refused, syntax errors, how strings are spelt.

What is refused would make a reader fail or take too long: huge files, deep nesting, aliases that expand without end.
"""

from __future__ import annotations

import os
import re
import unicodedata
from array import array
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from trainyard.project_files import read_bytes
from trainyard.resources import word_tables
from trainyard.settings.files import TooLarge
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError
from trainyard.spec.rules import NOT_ONE_DOCUMENT, TOO_LARGE, UNREADABLE_FILE, WRONG_ENCODING, YAML_SYNTAX

if TYPE_CHECKING:
    Loader = yaml.SafeLoader
else:

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        """PyYAML's, with its own resolution of scalars looked up for those that it has seen: most keys, and types."""

        resolve = staticmethod(lru_cache(maxsize=4096)(yaml.resolver.Resolver().resolve))


LARGEST_FILE_BYTES = 2 * 1024 * 1024
DEEPEST_NESTING = 100
# Aliases share what they name, but every reader walks the tree they stand for.
MOST_VALUES = 200_000

_BLOCK_ABOVE = regex(r"[|>][-+]?[ \t]*\n(?:(?:[ \t][^\n]*)?\n)+\Z")
_LINE_BREAK = regex("\r\n|[\r\n\x85\u2028\u2029]")
# Cheap signs that nesting might be deep; only then are the parser's events counted (libyaml's composer recurses in C).
_MANY_NESTED_ON_ONE_LINE = regex(rf"(?:[-?:][ \t]+){{{DEEPEST_NESTING}}}")
_DEEP_INDENT = " " * DEEPEST_NESTING

# Shorter text cannot nest that deeply: each level takes two characters at least.
_SHORTEST_DEEP_LINE = 2 * DEEPEST_NESTING

STRING_TAG = "tag:yaml.org,2002:str"
COLLECTION_TAGS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})

_SPACES = "Indent with spaces."
_INVISIBLE_INDENT = regex("[ \t]*([\u00a0\u1680\u2000-\u200d\u202f\u205f\u2060\u3000\ufeff])")
_HINT_BY_PROBLEM: dict[str, str] = word_tables("spec")["yaml_hints"]["words"]
_TOLD_WHERE_IT_BEGINS: list[str] = word_tables("spec")["told_where_it_begins"]["words"]


def source_lines(text: str) -> list[str]:
    """Split text where YAML does."""
    return _LINE_BREAK.split(text)


def line_starts(text: str) -> list[int]:
    """Where each line of text begins, in characters."""
    return [0, *(line_break.end() for line_break in _LINE_BREAK.finditer(text))]


def read_text(file: Path) -> str:
    """Return the text of a file in UTF-8. Raises SpecError for any other, and for one that cannot be read."""
    if "\0" in str(file):
        raise SpecError(UNREADABLE_FILE.at(Span(file), "a file name cannot contain NUL"))
    try:
        content = read_bytes(file, LARGEST_FILE_BYTES)
    except TooLarge:
        raise SpecError(_too_many_bytes(file, os.stat(file).st_size)) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError(UNREADABLE_FILE.at(Span(file), f"cannot be read: {reason}")) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", errors="replace")
        span = _point(file, before)
        message = f"the file is not UTF-8: byte 0x{content[error.start]:02x} is invalid"
        hint = "Save it as UTF-8."
        raise SpecError(WRONG_ENCODING.at(span, message, hint=hint)) from None


def compose(file: Path, text: str, problems: list[Diagnostic]) -> yaml.Node:
    """Return the root of YAML text in PyYAML's form. Raises SpecError when it cannot be read at all."""
    _refuse_unreadable(file, text)
    if _may_nest_deeply(text):
        _refuse_deep_nesting(file, text)
    try:
        composed = _compose(file, text, problems)
    except yaml.YAMLError as error:
        raise SpecError(_syntax_problem(file, text, error)) from None
    if composed is None:
        hint = "Write YAML into it, or remove it."
        raise SpecError(NOT_ONE_DOCUMENT.at(Span(file), "there is no value, only spaces or comments", hint=hint))
    if "*" in text and "&" in text:
        _refuse_alias_bombs(file, composed)
    return composed


def _refuse_unreadable(file: Path, text: str) -> None:
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > LARGEST_FILE_BYTES:
        raise SpecError(_too_many_bytes(file, size_bytes))
    if "\0" in text:
        span = _point(file, text[: text.index("\0")])
        raise SpecError(WRONG_ENCODING.at(span, "the file is binary, or UTF-16: it contains a NUL byte"))


def _too_many_bytes(file: Path, size_bytes: int) -> Diagnostic:
    message = f"the file has {size_bytes:,} bytes; at most {LARGEST_FILE_BYTES:,} are read"
    return TOO_LARGE.at(Span(file), message)


def _point(file: Path, before: str) -> Span:
    """The place just behind the text that a file begins with."""
    lines = source_lines(before)
    line, column = len(lines), len(lines[-1]) + 1
    return Span(file, line, column, line, column + 1)


def _compose(file: Path, text: str, problems: list[Diagnostic]) -> yaml.Node | None:
    loader = Loader(text)
    try:
        first = loader.get_node() if loader.check_node() else None
        second = loader.get_node() if first is not None and loader.check_node() else None
        if second is not None:
            span = span_at(file, second.start_mark)
            message = "a second document begins here; Azure ML reads files of one document"
            hint = "Put it into a file of its own, or remove the line '---'."
            problems.append(NOT_ONE_DOCUMENT.at(span, message, hint=hint))
        return first
    finally:
        loader.dispose()


def _may_nest_deeply(text: str) -> bool:
    return (
        # A '{' of a binding opens nothing: '$' is part of a plain string, which it goes on.
        text.count("[") + text.count("{") - 2 * text.count("${{") > DEEPEST_NESTING
        or (_DEEP_INDENT in text)
        or (
            max(map(len, text.split("\n"))) >= _SHORTEST_DEEP_LINE and _MANY_NESTED_ON_ONE_LINE.search(text) is not None
        )
    )


def _refuse_deep_nesting(file: Path, text: str) -> None:
    depth = 0
    try:
        for event in yaml.parse(text, Loader=Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEEPEST_NESTING:
                    span = span_at(file, event.start_mark)
                    message = f"values are nested more than {DEEPEST_NESTING} deep here"
                    raise SpecError(TOO_LARGE.at(span, message))
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.YAMLError as error:
        raise SpecError(_syntax_problem(file, text, error)) from None


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key
            yield value
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _refuse_alias_bombs(file: Path, root: yaml.Node) -> None:
    """Refuse aliases that contain themselves, or that expand to more values than anybody writes."""
    sizes: dict[int, int] = {}
    being_counted: set[int] = set()

    def count(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        if id(node) in being_counted:
            span = span_at(file, node.start_mark)
            raise SpecError(TOO_LARGE.at(span, "this value contains itself through an alias"))
        being_counted.add(id(node))
        size = 1 + sum(count(child) for child in _children(node))
        being_counted.discard(id(node))
        if size > MOST_VALUES:
            message = f"aliases expand this value to {size:,} values; at most {MOST_VALUES:,} are read"
            raise SpecError(TOO_LARGE.at(span_at(file, node.start_mark), message))
        sizes[id(node)] = size
        return size

    count(root)


def span_at(file: Path, mark: Any) -> Span:
    """The one character after a parser's mark."""
    return Span(file, mark.line + 1, mark.column + 1, mark.line + 1, mark.column + 2)


def _syntax_problem(file: Path, text: str, error: yaml.YAMLError) -> Diagnostic:
    if isinstance(error, yaml.reader.ReaderError):
        # libyaml counts this position in bytes of UTF-8.
        before = text.encode()[: error.position].decode(errors="ignore")
        message = "control character; YAML allows none"
        return YAML_SYNTAX.at(_point(file, before), message)
    assert isinstance(error, yaml.MarkedYAMLError), error
    mark, context_mark = error.problem_mark or error.context_mark, error.context_mark
    problem = error.problem or error.context or "not YAML"
    assert mark is not None, error
    character = text[mark.index : mark.index + 1]
    hint = next((hint for part, hint in _HINT_BY_PROBLEM.items() if part in problem), "")
    if "cannot start any token" in problem:
        if character == "\t":
            problem, hint = "a tab where YAML requires spaces", _SPACES
        else:
            problem, hint = f"a value cannot begin with {character!r}", "Quote the value."
    related = []
    if context_mark is not None and any(part in problem for part in _TOLD_WHERE_IT_BEGINS):
        mark, context_mark = context_mark, None
    if mark.column == 0 and _BLOCK_ABOVE.search(text, 0, mark.index):
        hint = "Indent this line, if it belongs to the block above; a key is followed by ': '."
    if context_mark is not None and error.context and context_mark.index != mark.index:
        related.append(Related(span_at(file, context_mark), error.context))
    opening = _swallowing_quote(text, mark.line)
    if opening is not None:
        problem, hint = f"the quote that opens here closes in line {mark.line + 1} only", "Close it on its own line."
        mark, related = opening, []
    for number, line in list(enumerate(source_lines(text), start=1))[max(mark.line - 1, 0) : mark.line + 1]:
        if (invisible := invisible_indent(line)) is not None:
            hint = f"Line {number} begins with the invisible character {invisible}. {_SPACES}"
            break
    return YAML_SYNTAX.at(span_at(file, mark), f"not YAML: {problem}", hint=hint, related=tuple(related))


def invisible_indent(line: str) -> str | None:
    """Name the first character of a line's indentation that looks like a space, or is invisible, but is not a space."""
    match = _INVISIBLE_INDENT.match(line)
    return f"U+{ord(match[1]):04X} ({unicodedata.name(match[1]).lower()})" if match is not None else None


def _swallowing_quote(text: str, line: int) -> Any | None:
    """Where a quote opens that was never closed, and so took all lines up to the next quote; None where none did."""
    last = None
    try:
        for token in yaml.scan(text, Loader=Loader):
            if token.start_mark.line > line:
                break
            if not isinstance(token, yaml.ScalarToken) or token.style not in ("'", '"'):
                continue
            if token.start_mark.line < token.end_mark.line == line and ":" in token.value:
                last = token.start_mark
    except yaml.YAMLError:
        pass
    return last


_PROPERTIES = regex(r"(?:[&!]\S*\s+)*")
_LINE_END = regex("[\r\n\x85\u2028\u2029]")
_ESCAPE = regex(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_BLANKS = regex(r"\s*")
# With the escapes for blanks, or (a line end) for nothing.
_BLANKS_IN_QUOTES = regex(r"(?:\s|\\[ntvfrNLP_ \t\r\n\x85\u2028\u2029])*")
_ESCAPES_IN = {'"': "\\", "'": "''"}
_CHARACTER = regex(r"\S")
_WORD = regex(r"\S+")


class Spelling(NamedTuple):
    """For each character of a value, where its spelling begins and ends in the file; -1 for spaces."""

    begins: array[int]
    ends: array[int]

    def part(self, start: int, end: int) -> tuple[int, int] | None:
        """Where `value[start:end]` is spelt, without spaces around it; None where it is nothing but spaces."""
        written = [offset for offset in range(start, min(end, len(self.begins))) if self.begins[offset] >= 0]
        return (self.begins[written[0]], self.ends[written[-1]]) if written else None


def spelling_of(value: str, text: str, begin: int, end: int) -> Spelling | None:
    """How a scalar's value is spelt in `text[begin:end]`; None where the two do not agree.

    Understands every style: plain, quoted (with escapes), literal and folded; both are walked once. Blanks, which
    folding makes and unmakes, have no place.
    """
    properties = _PROPERTIES.match(text, begin, end)
    position = properties.end() if properties else begin
    style = text[position : position + 1]
    if style in ("|", ">"):
        header = _LINE_END.search(text, position, end)
        position = header.end() if header else end
    elif style in ("'", '"'):
        position += 1
    begins, ends = array("q", [-1]) * len(value), array("q", [-1]) * len(value)
    has_escapes = style in _ESCAPES_IN and text.find(_ESCAPES_IN[style], position, end) >= 0
    blanks = _BLANKS_IN_QUOTES if style == '"' else _BLANKS
    # Without escapes a word is spelt as it is.
    for part in (_CHARACTER if has_escapes else _WORD).finditer(value):
        first, last = part.span()
        skipped = blanks.match(text, position, end)
        position = skipped.end() if skipped else position
        finish = _end_of(text, position, style) if has_escapes else position + last - first
        if finish > end or not (text.startswith(part[0], position) or (style == '"' and text[position] == "\\")):
            return None
        begins[first:last] = array("q", range(position, position + last - first))
        ends[first:last] = array("q", range(finish - (last - first) + 1, finish + 1))
        position = finish
    return Spelling(begins, ends)


def _end_of(text: str, position: int, style: str) -> int:
    """Where the spelling of the character ends that begins here."""
    if style == '"' and (escape := _ESCAPE.match(text, position)) is not None:
        return escape.end()
    return position + 2 if style == "'" and text.startswith("''", position) else position + 1
