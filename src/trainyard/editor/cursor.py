"""What is at a place in a document: the keys that lead there, the key or value, and a binding in it."""

from __future__ import annotations

from dataclasses import dataclass

from trainyard.spec.diagnostic import Span
from trainyard.spec.documents import Document, Node
from trainyard.spec.expressions import Binding, bindings_of_value

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Cursor:
    """A key or value: the path to it, its node (of a key, the key's), and the mapping around each step of the path."""

    document: Document
    path: KeyPath
    node: Node
    is_key: bool
    holders: tuple[Node, ...]

    @property
    def key(self) -> str:
        """The last key of the path; empty if there is none."""
        return next((step for step in reversed(self.path) if isinstance(step, str)), "")

    def binding_at(self, line: int, column: int) -> tuple[Binding, Span] | None:
        """Return the binding at a place in this string, and where it is written."""
        if self.is_key or not self.node.is_text:
            return None
        for binding in bindings_of_value(self.node.text):
            span = self.document.span_within(self.node, binding.start, binding.end)
            if covers(span, line, column):
                return binding, span
        return None


def cursor_at(document: Document, line: int, column: int) -> Cursor | None:
    """Return what is at a place; None between values."""
    path: list[str | int] = []
    holders: list[Node] = []
    node = document.root
    while True:
        members: list[tuple[str | int, Node]] = [*enumerate(node.items)]
        for name, entry in node.entries.items():
            if covers(entry.key.span, line, column):
                return Cursor(document, (*path, name), entry.key, True, (*holders, node))
            members.append((name, entry.value))
        found = next(((step, member) for step, member in members if covers(member.span, line, column)), None)
        if found is None:
            is_scalar = not node.is_mapping and not isinstance(node.data, list)
            return Cursor(document, tuple(path), node, False, tuple(holders)) if is_scalar and path else None
        path.append(found[0])
        holders.append(node)
        node = found[1]


def covers(span: Span, line: int, column: int) -> bool:
    """Whether a place is in a span or right behind it, where the cursor is after typing it."""
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)
