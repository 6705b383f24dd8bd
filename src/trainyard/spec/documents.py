"""One YAML file, read once: its values as Python objects, and where each key and value is.

Positions come from the YAML parser itself; scalars are resolved as PyYAML does (YAML 1.1), because that is what
Azure ML's client reads with. Nothing here knows what the keys mean.
"""

from __future__ import annotations

import math
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span, SpecError
from trainyard.spec.model import Value
from trainyard.spec.rules.documents import (
    DUPLICATE_KEY,
    KEY_NOT_TEXT,
    NOT_A_MAPPING,
    NOT_ONE_DOCUMENT,
    TOO_LARGE,
    UNKNOWN_TAG,
    UNREADABLE_FILE,
    WRONG_ENCODING,
    YAML_SYNTAX,
)
from trainyard.spec.spelling import Spelling, spelling_of

if TYPE_CHECKING:
    _SafeLoader = yaml.SafeLoader
else:
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

LARGEST_FILE_BYTES = 2 * 1024 * 1024
DEEPEST_NESTING = 100
# Aliases share what they name, but every reader walks the tree they stand for.
MOST_VALUES = 200_000
# Far more than a command or description has; what is looked into character by character must end.
LONGEST_TEXT = 64 * 1024
# Python writes no integer out that has more than 4300 digits.
_MOST_BITS = 14_000

_BEGINNING_BYTES = 64 * 1024
# `$schema`, a reference, or the `type` of a job, component or compute at the root. Other programs' files, such as
# templates of Helm, have none of them.
_SAYS_AZUREML = re.compile(
    r"\$schema\W+\S*azureml|azureml:"
    r"|^[\"']?type[\"']?\s*:\s*[\"']?(?:command|pipeline|sweep|parallel|spark|automl|amlcompute|computeinstance)\b",
    re.IGNORECASE | re.MULTILINE,
)

_LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
# Cheap signs that nesting might be deep; only then are the parser's events counted (libyaml's composer recurses in C).
_MANY_NESTED_ON_ONE_LINE = re.compile(rf"(?:[-?:][ \t]+){{{DEEPEST_NESTING}}}")
_DEEP_INDENT = " " * DEEPEST_NESTING

# Shorter text cannot nest that deeply: each level takes two characters at least.
_SHORTEST_DEEP_LINE = 2 * DEEPEST_NESTING

_STRING = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_SCALAR_CONSTRUCTORS = {
    "tag:yaml.org,2002:int": "construct_yaml_int",
    "tag:yaml.org,2002:float": "construct_yaml_float",
    "tag:yaml.org,2002:bool": "construct_yaml_bool",
    "tag:yaml.org,2002:null": "construct_yaml_null",
}
# Read as text: JSON has no dates.
_TEXT_TAGS = frozenset({_STRING, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value", _MERGE})
_COLLECTION_TAG_OF: dict[type[yaml.Node], str] = {
    yaml.MappingNode: "tag:yaml.org,2002:map",
    yaml.SequenceNode: "tag:yaml.org,2002:seq",
}
_COLLECTION_TAGS = frozenset(_COLLECTION_TAG_OF.values())

_HINT_BY_PROBLEM = (
    ("mapping values are not allowed", "Quote a value that holds ': ', and check this line's indentation."),
    ("could not find expected ':'", "A key is followed by ': '; check this line and the one above."),
    ("did not find expected key", "Check the indentation of this line and the quotes of the lines above."),
    ("did not find expected ',' or", "A '[' or '{' above is not closed, or a comma is missing."),
    ("expected ',' or", "A '[' or '{' above is not closed, or a comma is missing."),
    ("did not find expected node content", "A '[' or '{' above is not closed, or a comma is too many."),
    ("did not find expected '-' indicator", "The items of a list begin in the same column, each with '- '."),
    ("tab character that violates indentation", "Indent with spaces."),
    ("undefined alias", "A value that begins with '*' is quoted, or the anchor (&name) is written above it."),
    ("unexpected end of stream", "A quote is not closed."),
)


# What is opened here and missed only later, or at the end of the file.
_TOLD_WHERE_IT_BEGINS = (
    "found unexpected end of stream",
    "could not find expected ':'",
    "did not find expected ',' or",
    "expected ',' or",
)


class Loader(_SafeLoader):
    """PyYAML's safe loader, without the work for resolvers by path, of which there are none."""

    def descend_resolver(self, current_node: yaml.Node | None, current_index: int | yaml.Node | None) -> None:
        """Nothing: there are no paths to follow."""

    def ascend_resolver(self) -> None:
        """Nothing, as above."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: tuple[bool, bool]) -> str:
        """The tag of a node that is written without one."""
        if kind is not yaml.ScalarNode:
            return _COLLECTION_TAG_OF[kind]
        assert value is not None
        for tag, pattern in self.yaml_implicit_resolvers.get(value[:1], ()) if implicit[0] else ():
            if pattern.match(value):
                return str(tag)
        return _STRING


class Entry(NamedTuple):
    """A key of a mapping and its value."""

    key: Node
    value: Node


class Node:
    """A value of a document, with its place.

    `data` is its plain Python form; `text` a scalar's text without quotes; `entries` a mapping's entries by key (the
    last of duplicates, as PyYAML does); `items` a list's items.
    """

    __slots__ = ("_place", "data", "entries", "file", "items", "text")

    def __init__(self, file: Path, start: Any, end: Any, data: Any, text: str = "") -> None:
        self.file = file
        # One number takes a quarter of the memory of two marks.
        self._place = (
            (start.index << 2 * _BITS | start.line << _BITS | start.column) << 3 * _BITS
            | end.index << 2 * _BITS
            | end.line << _BITS
            | end.column
        )
        self.data = data
        self.text = text
        # Scalars, which most nodes are, share what they do not have: half the memory of a large folder.
        self.entries: dict[str, Entry] = _NO_ENTRIES
        self.items: list[Node] = _NO_ITEMS

    @property
    def span(self) -> Span:
        """Where this is; a block's end is where the next thing begins."""
        place = self._place
        return Span(
            self.file,
            (place >> 4 * _BITS & _MASK) + 1,
            (place >> 3 * _BITS & _MASK) + 1,
            (place >> _BITS & _MASK) + 1,
            (place & _MASK) + 1,
        )

    @property
    def offsets(self) -> tuple[int, int]:
        """Where this begins and ends in the document's text, in characters."""
        return self._place >> 5 * _BITS, self._place >> 2 * _BITS & _MASK

    @property
    def is_mapping(self) -> bool:
        """Whether this holds keys and values."""
        return isinstance(self.data, dict)

    @property
    def is_text(self) -> bool:
        """Whether this is a string."""
        return isinstance(self.data, str)

    @property
    def value(self) -> Value:
        """This as the model holds it."""
        return Value(self.data, self.span, self.text)

    def get(self, key: str) -> Node | None:
        """The value of a key of this mapping, or None."""
        entry = self.entries.get(key)
        return entry.value if entry is not None else None

    def find(self, *keys: str) -> Node | None:
        """The value at a path of keys; None if any of them is missing."""
        found: Node | None = self
        for key in keys:
            found = found.get(key) if found is not None else None
        return found

    def entries_of(self, key: str) -> dict[str, Entry]:
        """The entries of the mapping beneath a key; none if there is no mapping."""
        found = self.get(key)
        return found.entries if found is not None else _NO_ENTRIES

    def key_span(self, key: str) -> Span:
        """Where a key of this mapping is."""
        return self.entries[key].key.span


# Lines, columns and offsets of the largest file fit into so many bits each.
_BITS = 24
_MASK = (1 << _BITS) - 1
_NO_ENTRIES: dict[str, Entry] = {}
_NO_ITEMS: list[Node] = []


@dataclass
class Document:
    """A YAML file as it was read. `problems` are what it can be read in spite of: duplicate keys, unknown tags.

    `is_finite` is false where a number is NaN or an infinity, which JSON does not have.
    """

    file: Path
    text: str
    root: Node
    problems: list[Diagnostic] = field(default_factory=list)
    is_finite: bool = True
    _spellings: dict[tuple[int, int], Spelling | None] = field(default_factory=dict, repr=False)

    @property
    def data(self) -> Any:
        """The whole document as plain Python."""
        return self.root.data

    @cached_property
    def scalars(self) -> list[tuple[tuple[str, ...], Node]]:
        """Every scalar with the keys above it, in the order of the text; one with aliases as often as it is used."""
        found: list[tuple[tuple[str, ...], Node]] = []
        _collect_scalars(self.root, (), found)
        return found

    def forget_scalars(self) -> None:
        """Give the memory of `scalars` back, which would be as much as a tenth of what a large folder takes."""
        self.__dict__.pop("scalars", None)

    @cached_property
    def lines(self) -> list[str]:
        """The document's lines, without their ends."""
        return source_lines(self.text)

    def node_at(self, path: Sequence[str | int]) -> Node:
        """The value at a path of keys and indices. Raises KeyError or IndexError where there is none."""
        node = self.root
        for step in path:
            node = node.items[step] if isinstance(step, int) else node.entries[step].value
        return node

    def value_span(self, path: Sequence[str | int]) -> Span:
        """Where the value at a path is."""
        return self.node_at(path).span

    def key_span(self, path: Sequence[str | int]) -> Span:
        """Where the key at the end of a path is; for a list's item and for the root, the value's place."""
        if not path or isinstance(path[-1], int):
            return self.value_span(path)
        return self.node_at(path[:-1]).key_span(path[-1])

    def span_within(self, node: Node, start: int, end: int) -> Span:
        """Where a part of a string is, by its offsets in the string's value.

        Exact in plain, quoted and block strings; where escapes have changed the part's spelling, the whole string.
        """
        key = node.offsets
        if key not in self._spellings:
            self._spellings[key] = spelling_of(node.text, self.text, *key)
        spelling = self._spellings[key]
        place = spelling.part(start, end) if spelling is not None else None
        if place is None:
            return node.span
        return Span(self.file, *self.position(place[0]), *self.position(place[1]))

    @cached_property
    def _line_starts(self) -> list[int]:
        return line_starts(self.text)

    def position(self, offset: int) -> tuple[int, int]:
        """The line and column of an offset in the text."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1


def _collect_scalars(node: Node, path: tuple[str, ...], found: list[tuple[tuple[str, ...], Node]]) -> None:
    if isinstance(node.data, dict):
        for name, entry in node.entries.items():
            _collect_scalars(entry.value, (*path, name), found)
    elif isinstance(node.data, list):
        for item in node.items:
            _collect_scalars(item, path, found)
    else:
        found.append((path, node))


def source_lines(text: str) -> list[str]:
    """Split a text where YAML does."""
    return _LINE_BREAK.split(text)


def line_starts(text: str) -> list[int]:
    """Where each line of a text begins, in characters."""
    return [0, *(line_break.end() for line_break in _LINE_BREAK.finditer(text))]


def read_document(file: Path) -> Document:
    """Read a YAML file. Raises SpecError when it cannot be read at all; what can be lived with is in `problems`."""
    return parse_document(file, _read_text(file))


def parse_document(file: Path, text: str) -> Document:
    """Read a text as the YAML file `file`. Raises SpecError as `read_document` does."""
    _refuse_unreadable(file, text)
    if _may_nest_deeply(text):
        _refuse_deep_nesting(file, text)
    problems: list[Diagnostic] = []
    try:
        composed = _compose(file, text, problems)
    except yaml.YAMLError as error:
        raise SpecError(_syntax_problem(file, text, error)) from None
    if composed is None:
        hint = "Write YAML into it, or remove it."
        raise SpecError(NOT_ONE_DOCUMENT.at(Span(file), "there is no value, only blanks or comments", hint=hint))
    if "*" in text and "&" in text:
        _refuse_alias_bombs(file, composed)
    converter = _Converter(file, problems)
    root = converter.convert(composed)
    return Document(file, text, root, problems, is_finite=converter.is_finite)


def beginning_of(file: Path) -> str:
    """What a file begins with, as far as it can be read at all: enough to tell whose it is."""
    try:
        if not file.is_file():
            return ""
        with file.open("rb") as stream:
            return stream.read(_BEGINNING_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def says_azureml(text: str) -> bool:
    """Whether a text that is not valid YAML is meant for Azure ML: by its `$schema`, references or keys."""
    return _SAYS_AZUREML.search(text) is not None


def require_mapping(document: Document) -> None:
    """Raise SpecError if a document is not a mapping."""
    if not document.root.is_mapping:
        message = f"expected a mapping, found {describe(document.data)}"
        hint = "An Azure ML file begins with keys such as `type:` and `inputs:`."
        raise SpecError(NOT_A_MAPPING.at(document.root.span, message, hint=hint))


def describe(data: Any) -> str:
    """A value's kind in words that a message can use: `a list`, `the text 'x'`, `nothing`."""
    if data is None:
        return "nothing"
    if isinstance(data, dict):
        return "a mapping"
    if isinstance(data, list):
        return "a list"
    if isinstance(data, bool):
        return f"the boolean {str(data).lower()}"
    if isinstance(data, (int, float)):
        return f"the number {data}"
    return f"the text {shorten(data)!r}"


def shorten(text: str, most: int = 60) -> str:
    """A text cut to what fits into a message."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _read_text(file: Path) -> str:
    try:
        content = _read_bytes(file)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError(UNREADABLE_FILE.at(Span(file), f"cannot be read: {reason}")) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8-sig", errors="replace")
        span = _point(file, before)
        message = f"the file is not UTF-8: byte 0x{content[error.start]:02x} is invalid"
        hint = "Save it as UTF-8."
        raise SpecError(WRONG_ENCODING.at(span, message, hint=hint)) from None
    return text


def _refuse_unreadable(file: Path, text: str) -> None:
    # A character takes four bytes at most, so that only large texts are encoded.
    if len(text) * 4 > LARGEST_FILE_BYTES and len(text.encode("utf-8", "surrogatepass")) > LARGEST_FILE_BYTES:
        raise SpecError(_too_many_bytes(file, len(text.encode("utf-8", "surrogatepass"))))
    if "\0" in text:
        span = _point(file, text[: text.index("\0")])
        raise SpecError(WRONG_ENCODING.at(span, "the file is binary, or UTF-16: it contains a NUL byte"))


def _too_many_bytes(file: Path, size_bytes: int) -> Diagnostic:
    message = f"the file has {size_bytes:,} bytes; at most {LARGEST_FILE_BYTES:,} are read"
    return TOO_LARGE.at(Span(file), message)


def _read_bytes(file: Path) -> bytes:
    if "\0" in str(file):
        raise SpecError(UNREADABLE_FILE.at(Span(file), "a file name cannot contain NUL"))
    status = os.stat(file)
    if status.st_size > LARGEST_FILE_BYTES:
        raise SpecError(_too_many_bytes(file, status.st_size))
    if not stat.S_ISREG(status.st_mode):
        raise SpecError(UNREADABLE_FILE.at(Span(file), "this is not a file"))
    return file.read_bytes()


def _point(file: Path, before: str) -> Span:
    """The place just behind a text that a file begins with."""
    lines = source_lines(before)
    line, column = len(lines), len(lines[-1]) + 1
    return Span(file, line, column, line, column + 1)


def _compose(file: Path, text: str, problems: list[Diagnostic]) -> yaml.Node | None:
    loader = Loader(text)
    try:
        first = loader.get_node() if loader.check_node() else None
        second = loader.get_node() if first is not None and loader.check_node() else None
        if second is not None:
            span = _span_at(file, second.start_mark)
            message = "a second document begins here; Azure ML reads files of one document"
            hint = "Put it into a file of its own, or remove the line '---'."
            problems.append(NOT_ONE_DOCUMENT.at(span, message, hint=hint))
        return first
    finally:
        loader.dispose()


def _may_nest_deeply(text: str) -> bool:
    return (
        # A '{' of a binding opens nothing: '$' is part of a plain text, which it goes on.
        text.count("[") + text.count("{") - 2 * text.count("${{") > DEEPEST_NESTING
        or (_DEEP_INDENT in text)
        or any(
            len(line) >= _SHORTEST_DEEP_LINE and _MANY_NESTED_ON_ONE_LINE.search(line) is not None
            for line in text.split("\n")
        )
    )


def _refuse_deep_nesting(file: Path, text: str) -> None:
    depth = 0
    try:
        for event in yaml.parse(text, Loader=Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > DEEPEST_NESTING:
                    span = _span_at(file, event.start_mark)
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
            span = _span_at(file, node.start_mark)
            raise SpecError(TOO_LARGE.at(span, "this value contains itself through an alias"))
        being_counted.add(id(node))
        size = 1 + sum(count(child) for child in _children(node))
        being_counted.discard(id(node))
        if size > MOST_VALUES:
            message = f"aliases expand this value to {size:,} values; at most {MOST_VALUES:,} are read"
            raise SpecError(TOO_LARGE.at(_span_at(file, node.start_mark), message))
        sizes[id(node)] = size
        return size

    count(root)


def _span_at(file: Path, mark: Any) -> Span:
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
    hint = next((hint for part, hint in _HINT_BY_PROBLEM if part in problem), "")
    if "cannot start any token" in problem:
        if character == "\t":
            problem, hint = "a tab where YAML requires spaces", "Indent with spaces."
        else:
            problem, hint = f"a value cannot begin with {character!r}", "Quote the value."
    related = []
    if context_mark is not None and any(part in problem for part in _TOLD_WHERE_IT_BEGINS):
        mark, context_mark = context_mark, None
    if context_mark is not None and error.context and context_mark.index != mark.index:
        span = Span(
            file, context_mark.line + 1, context_mark.column + 1, context_mark.line + 1, context_mark.column + 2
        )
        related.append(Related(span, error.context))
    opening = _swallowing_quote(text, mark.line)
    if opening is not None:
        problem, hint = f"the quote that opens here closes in line {mark.line + 1} only", "Close it on its own line."
        mark, related = opening, []
    return YAML_SYNTAX.at(_span_at(file, mark), f"not YAML: {problem}", hint=hint, related=tuple(related))


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


# What can be bound to in Azure ML's files; `{{values.image}}` is another program's.
_BINDING_PATH = re.compile(r"(?:parent|inputs|outputs)(?:\.[\w-]+)+", re.ASCII)


def _binding_without_sign(node: yaml.MappingNode) -> str | None:
    """The binding that `{{parent.inputs.x}}` was to be; None for any other mapping."""
    if len(node.value) != 1 or not _has_empty_value(node):
        return None
    inner = node.value[0][0]
    if not isinstance(inner, yaml.MappingNode) or len(inner.value) != 1 or not _has_empty_value(inner):
        return None
    name = inner.value[0][0]
    if not isinstance(name, yaml.ScalarNode) or _BINDING_PATH.fullmatch(name.value) is None:
        return None
    return f"${{{{{name.value}}}}}"


def _has_empty_value(node: yaml.MappingNode) -> bool:
    value = node.value[0][1]
    return isinstance(value, yaml.ScalarNode) and not value.value


class _Converter:
    """From PyYAML's nodes to ours. Aliases stay shared, so this is linear in what is written."""

    def __init__(self, file: Path, problems: list[Diagnostic]) -> None:
        self._file = file
        self._problems = problems
        self._converted: dict[int, Node] = {}
        self._constructor = yaml.constructor.SafeConstructor()
        self.is_finite = True

    def convert(self, node: yaml.Node) -> Node:
        if isinstance(node, yaml.ScalarNode):
            # Nothing hangs on a scalar, so that each alias may have one of its own.
            return self._scalar(node)
        known = self._converted.get(id(node))
        if known is not None:
            return known
        if isinstance(node, yaml.MappingNode):
            made = self._mapping(node)
        else:
            assert isinstance(node, yaml.SequenceNode), node
            made = self._sequence(node)
        self._converted[id(node)] = made
        return made

    def _scalar(self, node: yaml.ScalarNode) -> Node:
        text: str = node.value
        if len(text) > LONGEST_TEXT:
            message = f"this text has {len(text):,} characters; at most {LONGEST_TEXT:,} are read"
            raise SpecError(TOO_LARGE.at(_span_at(self._file, node.start_mark), message))
        tag = node.tag
        if tag == _STRING:
            return Node(self._file, node.start_mark, node.end_mark, text, text)
        data: Any = text
        construct = _SCALAR_CONSTRUCTORS.get(tag)
        if construct is not None:
            try:
                constructed = getattr(self._constructor, construct)(node)
                if isinstance(constructed, int) and constructed.bit_length() > _MOST_BITS:
                    raise ValueError("too many digits")
                if isinstance(constructed, float) and not math.isfinite(constructed):
                    self.is_finite = False
                data = constructed
            except (ValueError, KeyError, IndexError):
                # `!!int twelve`, or an integer of more digits than Python converts.
                self._report_tag(node, f"{shorten(text)!r} cannot be read as {tag.rpartition(':')[2]}")
        elif tag not in _TEXT_TAGS:
            self._report_tag(node, f"Azure ML's client does not understand the tag {_short_tag(tag)}")
        return Node(self._file, node.start_mark, node.end_mark, data, text)

    def _sequence(self, node: yaml.SequenceNode) -> Node:
        self._check_collection_tag(node)
        made = Node(self._file, node.start_mark, node.end_mark, None)
        made.items = [self.convert(item) for item in node.value]
        made.data = [item.data for item in made.items]
        return made

    def _mapping(self, node: yaml.MappingNode) -> Node:
        meant = _binding_without_sign(node)
        if meant is not None:
            made = Node(self._file, node.start_mark, node.end_mark, meant, meant)
            message = f"'{meant[1:]}' is a mapping to YAML: a binding begins with '$'"
            self._problems.append(KEY_NOT_TEXT.at(made.span, message, hint=f"Write {meant}"))
            return made
        self._check_collection_tag(node)
        made = Node(self._file, node.start_mark, node.end_mark, None)
        entries: dict[str, Entry] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged.append(self.convert(value_node))
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                span = _span_at(self._file, key_node.start_mark)
                hint = "Quote a value that begins with '{' or '['."
                message = "a key is a text, not a list or mapping"
                self._problems.append(KEY_NOT_TEXT.at(span, message, hint=hint))
                continue
            key, value = self.convert(key_node), self.convert(value_node)
            if key.text in entries:
                self._report_duplicate(entries[key.text], Entry(key, value))
            entries[key.text] = Entry(key, value)
        for source in merged:
            for mapping in source.items or [source]:
                for name, entry in mapping.entries.items():
                    entries.setdefault(name, entry)
        made.entries = entries
        made.data = {name: entry.value.data for name, entry in entries.items()}
        return made

    def _report_duplicate(self, first: Entry, second: Entry) -> None:
        is_same = first.value.data == second.value.data
        what = "with the same value" if is_same else "the last one wins, the first is lost"
        message = f"the key '{shorten(second.key.text)}' is written twice; {what}"
        related = (Related(first.key.span, "first written here"),)
        hint = "Remove one of them, or rename it."
        severity: Severity = "warning" if is_same else "error"
        problem = DUPLICATE_KEY.at(second.key.span, message, hint, related, severity=severity)
        self._problems.append(problem)

    def _check_collection_tag(self, node: yaml.Node) -> None:
        if node.tag not in _COLLECTION_TAGS:
            self._report_tag(node, f"Azure ML's client does not understand the tag {_short_tag(node.tag)}")

    def _report_tag(self, node: yaml.Node, message: str) -> None:
        hint = "Remove the tag, or quote the value."
        self._problems.append(UNKNOWN_TAG.at(_span_at(self._file, node.start_mark), message, hint=hint))


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
