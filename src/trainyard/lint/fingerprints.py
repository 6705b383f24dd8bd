"""The identity of a finding when lines move: its rule, its file, the keys that lead to it, and its text."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from trainyard.lint.text_output import relative_name
from trainyard.settings.regex import regex
from trainyard.spec.diagnostic import Diagnostic, Span, SpecError
from trainyard.spec.documents import Document, Node, read_document, shorten

_ASIDE = regex(r"(^|/)\.trainyard/rendered/[^/]+/")


class Identity(NamedTuple):
    """A finding without its line, so that it stays equal when lines above it are added or removed."""

    file: str
    rule: str
    keys: str
    text: str


class Fingerprints:
    """The identities of findings, with files relative to a folder; each file is read once."""

    def __init__(self, relative_to: Path, read: Callable[[Path], Document] = read_document) -> None:
        self._relative_to = relative_to
        self._read = read
        self._outlines: dict[Path, _Outline | None] = {}

    def identity(self, diagnostic: Diagnostic) -> Identity:
        """Return the identity of a finding."""
        span = diagnostic.span
        # Rendered aside for another profile, a file stands for the project's own of that name.
        name = _ASIDE.sub(r"\1", relative_name(span.file, self._relative_to), count=1)
        outline = self._outline(span.file)
        if outline is None:
            # What is not YAML has no keys, and an unreadable file has no text.
            return Identity(name, diagnostic.rule, "", "")
        return Identity(name, diagnostic.rule, outline.keys_to(span), _text_of(outline.document, span))

    def of_all(self, diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
        """Yield a digest per finding; repeated identities get different digests."""
        seen: Counter[Identity] = Counter()
        for diagnostic in diagnostics:
            identity = self.identity(diagnostic)
            seen[identity] += 1
            yield hashlib.sha256(json.dumps([*identity, seen[identity]]).encode()).hexdigest()[:32]

    def _outline(self, file: Path) -> _Outline | None:
        if file not in self._outlines:
            try:
                self._outlines[file] = _Outline(self._read(file))
            except SpecError:
                self._outlines[file] = None
        return self._outlines[file]


class _Outline:
    """The range of each entry of a document, so that a place is found without walking the document."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._entries: list[_Entry] = []
        self._seen: set[int] = set()
        self._collect(document.root, None)
        self._entries.sort(key=lambda entry: entry.begin)
        self._begins = [entry.begin for entry in self._entries]

    def keys_to(self, span: Span) -> str:
        """Return the keys that lead to a place. List items have none, so that an item added above changes nothing."""
        place = (span.line, span.column)
        index = bisect_right(self._begins, place) - 1
        entry = self._entries[index] if index >= 0 else None
        while entry is not None and not entry.begin <= place < entry.end:
            entry = entry.parent
        return entry.keys if entry is not None else ""

    def _collect(self, node: Node, parent: _Entry | None) -> None:
        # An alias belongs to where its value was first written.
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        for key, (key_node, value) in node.entries.items():
            keys = f"{parent.keys}.{key}" if parent is not None else key
            begin, end = key_node.span, value.span
            ends = max((end.end_line, end.end_column), (begin.end_line, begin.end_column))
            entry = _Entry((begin.line, begin.column), ends, keys, parent)
            self._entries.append(entry)
            self._collect(value, entry)
        for item in node.items:
            self._collect(item, parent)


class _Entry(NamedTuple):
    begin: tuple[int, int]
    end: tuple[int, int]
    keys: str
    parent: _Entry | None


def _text_of(document: Document, span: Span) -> str:
    lines = document.lines
    if span.line > len(lines):
        return ""
    line = lines[span.line - 1]
    end = span.end_column - 1 if span.end_line == span.line else len(line)
    return shorten(line[span.column - 1 : end].strip(), 120)
