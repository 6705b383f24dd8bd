"""The outline of a file: its keys, with the inputs, outputs and jobs beneath them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Document, Entry, Node

OutlineKind = Literal["key", "job", "port"]
_PORTS = ("inputs", "outputs", "search_space")


@dataclass(frozen=True)
class OutlineEntry:
    """A key with what is beneath it; `span` reaches from the key to the end of its value."""

    name: str
    detail: str
    kind: OutlineKind
    key: Span
    span: Span
    children: tuple[OutlineEntry, ...] = ()


def outline_of(document: Document) -> tuple[OutlineEntry, ...]:
    """Return the outline of a file; empty for one that is not a mapping."""
    return _children(document.root)


def _children(holder: Node) -> tuple[OutlineEntry, ...]:
    return tuple(_entry(name, entry, "key") for name, entry in holder.entries.items())


def _entry(name: str, entry: Entry, kind: OutlineKind) -> OutlineEntry:
    value = entry.value
    below: tuple[OutlineEntry, ...] = ()
    if kind == "job":
        below = _children(value)
    elif kind == "key" and name == "jobs":
        below = tuple(_entry(job, each, "job") for job, each in value.entries.items())
    elif kind == "key" and name in _PORTS:
        below = tuple(_entry(port, each, "port") for port, each in value.entries.items())
    key, end = entry.key.span, max(entry.key.span, value.span, key=lambda span: (span.end_line, span.end_column))
    for child in below:
        end = max(end, child.span, key=lambda span: (span.end_line, span.end_column))
    span = key._replace(end_line=end.end_line, end_column=end.end_column)
    detail = value.text if not value.is_mapping and value.span.line == value.span.end_line else value.word("type")
    return OutlineEntry(name, detail, kind, key, span, below)
