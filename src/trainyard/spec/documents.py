"""One YAML file, read once: its values as Python objects, and where each key and value is.

Positions come from the YAML parser itself; scalars are resolved as PyYAML does (YAML 1.1), because that is what
Azure ML's client reads with. Nothing here knows what the keys mean.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from trainyard import project_files
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span, SpecError
from trainyard.spec.rules import DUPLICATE_KEY, KEY_NOT_TEXT, NOT_A_MAPPING, TOO_LARGE, UNKNOWN_TAG
from trainyard.spec.yaml_parsing import (
    COLLECTION_TAGS,
    STRING_TAG,
    Spelling,
    compose,
    line_starts,
    read_text,
    source_lines,
    span_at,
    spelling_of,
)

# Far more than a command or description has; what is looked into character by character must end.
LONGEST_TEXT = 64 * 1024
# Python writes no integer out that has more than 4300 digits.
_MOST_BITS = 14_000

_BEGINNING_BYTES = 64 * 1024
# `$schema`, a reference, or the `type` of a job, component or compute at the root. Other programs' files, such as
# templates of Helm, have none of them.
_SAYS_AZUREML = regex(
    r"\$schema\W{1,5}\S{0,200}azureml|azureml:"
    r"|^[\"']?type[\"']?\s*:\s*[\"']?(?:command|pipeline|sweep|parallel|spark|automl|amlcompute|computeinstance)\b",
    re.IGNORECASE | re.MULTILINE,
)

_MERGE = "tag:yaml.org,2002:merge"
_SCALAR_CONSTRUCTORS = {
    "tag:yaml.org,2002:int": "construct_yaml_int",
    "tag:yaml.org,2002:float": "construct_yaml_float",
    "tag:yaml.org,2002:bool": "construct_yaml_bool",
    "tag:yaml.org,2002:null": "construct_yaml_null",
}
# Read as text: JSON has no dates.
_TEXT_TAGS = frozenset({STRING_TAG, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value", _MERGE})


class Value(NamedTuple):
    """A value as a Python object (str, int, float, bool, None, list, dict), its span, and its text as typed."""

    data: Any
    span: Span
    text: str = ""

    @property
    def text_or_path(self) -> str | None:
        """A string, or the `path` of a mapping; None for anything else."""
        found = self.data.get("path") if isinstance(self.data, dict) else self.data
        return found if isinstance(found, str) else None


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

    def find_text(self, *keys: str) -> Node | None:
        """The string at a path of keys; None if there is none."""
        found = self.find(*keys)
        return found if found is not None and found.is_text else None

    def text_of(self, *keys: str) -> str:
        """The text of the scalar at a path of keys, numbers as they were typed; empty if there is none."""
        found = self.find(*keys)
        return found.text if found is not None and found.data is not None else ""

    def word(self, *keys: str) -> str:
        """The text of the scalar at a path of keys in lower case; empty if there is none."""
        return self.text_of(*keys).lower()

    def entries_of(self, key: str) -> dict[str, Entry]:
        """The entries of the mapping beneath a key; none if there is no mapping."""
        found = self.get(key)
        return found.entries if found is not None else _NO_ENTRIES

    def items_of(self, *keys: str) -> list[Node]:
        """The items of the list at a path of keys; none if there is no list."""
        found = self.find(*keys)
        return found.items if found is not None else _NO_ITEMS

    def key_span(self, key: str) -> Span:
        """Where a key of this mapping is."""
        return self.entries[key].key.span


# Lines, columns and offsets of the largest file fit into so many bits each.
_BITS = 24
_MASK = (1 << _BITS) - 1
_NO_ENTRIES: dict[str, Entry] = {}
_NO_ITEMS: list[Node] = []


@dataclass(eq=False)
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

    def key_span(self, path: Sequence[str | int]) -> Span:
        """Where the key at the end of a path is; for a list's item and for the root, the value's place."""
        if not path or isinstance(path[-1], int):
            return self.node_at(path).span
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


def read_document(file: Path) -> Document:
    """Read a YAML file. Raises SpecError when it cannot be read at all; what can be lived with is in `problems`."""
    return parse_document(file, read_text(file))


def parse_document(file: Path, text: str) -> Document:
    """Read text as the YAML file `file`. Raises SpecError as `read_document` does."""
    problems: list[Diagnostic] = []
    converter = _Converter(file, problems)
    root = converter.convert(compose(file, text, problems))
    return Document(file, text, root, problems, is_finite=converter.is_finite)


def beginning_of(file: Path) -> str:
    """What a file begins with, as far as it can be read at all: enough to tell whose it is."""
    try:
        return project_files.beginning_of(file, _BEGINNING_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return ""


def says_azureml(text: str) -> bool:
    """Whether text that is not valid YAML is meant for Azure ML: by its `$schema`, references or keys."""
    return _SAYS_AZUREML.search(text) is not None


# `{{NAME}}` as a value or within one, and the statements of Jinja; `{{parent.inputs.x}}` is a binding without its `$`.
_TEMPLATE = regex(
    r"^[^#\n]*?(?<!\$)\{\{-?[ ]*(?!(?:parent|inputs|outputs|search_space|jobs)\b)[A-Za-z_][^{}:,\n]*\}\}"
    r"|^[ \t]*\{%-?[ ]*[a-z]+",
    re.MULTILINE,
)
# `name: ${NAME}`, as `envsubst` fills it in. Within a file's parts, a shell or Azure ML may have to read it.
_SHELL_TEMPLATE = regex(r"^(?!command:)[a-z_]+:[ ]+[\"']?(?:azureml:)?\$\{?[A-Z]", re.MULTILINE)
_SHELL_VARIABLE = regex(r"\$\{?[A-Z]")


def template_in(text: str, *, is_yaml: bool = False) -> int | None:
    """The line of the first part of a file's text that a program is to fill in; None if there is none."""
    if is_yaml and not _SHELL_VARIABLE.search(text):
        return None
    match = (_SHELL_TEMPLATE if is_yaml else _TEMPLATE).search(text)
    return text.count("\n", 0, match.start()) + 1 if match is not None else None


def require_mapping(document: Document) -> None:
    """Raise SpecError if a document is not a mapping."""
    if not document.root.is_mapping:
        message = f"expected a mapping, found {describe(document.data)}"
        hint = "An Azure ML file begins with keys such as `type:` and `inputs:`."
        raise SpecError(NOT_A_MAPPING.at(document.root.span, message, hint=hint))


def require_faultless(document: Document) -> Document:
    """Return a mapping that was read without problems; raise SpecError for any other document."""
    require_mapping(document)
    if document.problems:
        raise SpecError(document.problems)
    return document


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
    """A string cut to what fits into a message."""
    return text if len(text) <= most else text[: most - 1] + "…"


# What can be bound to in Azure ML's files; `{{values.image}}` is another program's.
_BINDING_PATH = regex(r"(?:parent|inputs|outputs)(?:\.[\w-]+)+", re.ASCII)


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
            raise SpecError(TOO_LARGE.at(span_at(self._file, node.start_mark), message))
        tag = node.tag
        if tag == STRING_TAG:
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
                span = span_at(self._file, key_node.start_mark)
                hint = "Quote a value that begins with '{' or '['."
                message = "expected a string as the key, not a list or mapping"
                self._problems.append(KEY_NOT_TEXT.at(span, message, hint=hint))
                continue
            key, value = self._scalar(key_node), self.convert(value_node)
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
        if node.tag not in COLLECTION_TAGS:
            self._report_tag(node, f"Azure ML's client does not understand the tag {_short_tag(node.tag)}")

    def _report_tag(self, node: yaml.Node, message: str) -> None:
        hint = "Remove the tag, or quote the value."
        self._problems.append(UNKNOWN_TAG.at(span_at(self._file, node.start_mark), message, hint=hint))


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")
