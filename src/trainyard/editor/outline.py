"""The outline of a file: its keys, with the inputs, outputs and jobs beneath them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from lsprotocol import types

from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Document, Entry, Node

_Kind = Literal["key", "job", "port"]
_KINDS: dict[_Kind, types.SymbolKind] = {
    "key": types.SymbolKind.Property,
    "job": types.SymbolKind.Function,
    "port": types.SymbolKind.Field,
}
_PORTS = ("inputs", "outputs", "search_space")


def outline_of(document: Document, range_of: Callable[[Span], types.Range]) -> list[types.DocumentSymbol]:
    """Return the outline of a file, with its places as `range_of` converts them; empty for what is not a mapping."""
    return _children(document.root, range_of)


def _children(holder: Node, range_of: Callable[[Span], types.Range], kind: _Kind = "key") -> list[types.DocumentSymbol]:
    return [_symbol(name, entry, kind, range_of) for name, entry in holder.entries.items()]


def _symbol(name: str, entry: Entry, kind: _Kind, range_of: Callable[[Span], types.Range]) -> types.DocumentSymbol:
    value = entry.value
    below: list[types.DocumentSymbol] = []
    if kind == "job":
        below = _children(value, range_of)
    elif kind == "key" and name == "jobs":
        below = _children(value, range_of, "job")
    elif kind == "key" and name in _PORTS:
        below = _children(value, range_of, "port")
    key, detail = range_of(entry.key.span), value.word("type")
    if not value.is_mapping and value.span.line == value.span.end_line:
        detail = value.text
    return types.DocumentSymbol(
        name or '""',  # an empty name is against the protocol, and YAML has empty keys
        _KINDS[kind],
        range=types.Range(key.start, max(key.end, range_of(value.span).end, *(child.range.end for child in below))),
        selection_range=key,
        detail=detail or None,
        children=below,
    )
