"""Where a reader of YAML reports what is wrong, and reads keys by type; and the files that it reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from trainyard.settings.suggestions import did_you_mean, only_close
from trainyard.spec.diagnostic import Diagnostic, Related, Span, SpecError
from trainyard.spec.documents import (
    Document,
    Entry,
    Node,
    Value,
    beginning_of,
    parse_document,
    read_document,
    require_mapping,
)
from trainyard.spec.literals import LiteralError, typed_literal, whole_number, yaml_trap
from trainyard.spec.model import Port
from trainyard.spec.rule import Rule
from trainyard.spec.rules import YAML_TRAP

# What the client's boolean fields take besides YAML's own.
TRUE_WORDS = frozenset({"true", "t", "yes", "y", "on", "1"})
FALSE_WORDS = frozenset({"false", "f", "no", "n", "off", "0"})


class DocumentStore:
    """Files read once each, for everything that refers to them. `texts` are read instead of the files on disk.

    `documents` are what was read before, which is not read again; it takes what this store reads.
    """

    def __init__(
        self, texts: Mapping[Path, str] | None = None, documents: dict[Path, Document | SpecError] | None = None
    ) -> None:
        self.texts = texts or {}
        self._documents = {} if documents is None else documents
        self._named: set[Path] = set()
        self.files: list[Path] = []
        """The files that were read, or tried, in that order."""

    def read(self, file: Path) -> Document:
        """The document of a file. Raises SpecError, the same each time, if it cannot be read or is not a mapping."""
        if file not in self._named:
            self._named.add(file)
            self.files.append(file)
        return self.peek(file)

    def peek(self, file: Path) -> Document:
        """The same, for a file that no other file names: it is not added to `files`."""
        known = self._documents.get(file)
        if known is None:
            try:
                text = self.texts.get(file)
                known = read_document(file) if text is None else parse_document(file, text)
            except SpecError as error:
                known = error
            self._documents[file] = known
        if isinstance(known, SpecError):
            raise known
        return known

    def find(self, file: Path) -> Document | None:
        """The same; None for a file that cannot be read, which is reported where it is named."""
        with contextlib.suppress(SpecError):
            return self.peek(file)
        return None

    def roots(self) -> Iterator[Node]:
        """The mappings of all files that were read."""
        for known in self._documents.values():
            if isinstance(known, Document) and known.root.is_mapping:
                yield known.root

    def touch(self, file: Path) -> None:
        """Add a file to `files`, whether or not it can be read."""
        with contextlib.suppress(SpecError):
            self.read(file)

    def text_of(self, file: Path) -> str:
        """The text of a file that cannot be read as YAML, or its beginning."""
        return self.texts.get(file) or beginning_of(file)

    def read_mapping(self, file: Path) -> Document:
        """The document of a file that must be a mapping. Raises SpecError if it is not."""
        document = self.read(file)
        require_mapping(document)
        return document


class Findings:
    """What one reading found wrong, in the order it was found.

    The schemas judge the shape of a value. Readers leave out what has a wrong shape, and note that in `left_out`.
    """

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []
        self.left_out = False

    def add(self, finding: Diagnostic) -> None:
        """Record a finding."""
        self.diagnostics.append(finding)

    def mapping(self, node: Node | None) -> Node | None:
        """The node when it is a mapping; None when it is absent or empty, and for other shapes."""
        return self._of_shape(node, dict)

    def entries(self, node: Node | None) -> Mapping[str, Entry]:
        """The entries of a mapping; none when it is absent, and for other shapes."""
        mapping = self.mapping(node)
        return mapping.entries if mapping is not None else {}

    def items(self, node: Node | None) -> list[Node]:
        """The items of a list; none when it is absent, and for other shapes."""
        found = self._of_shape(node, list)
        return found.items if found is not None else []

    def string(self, node: Node | None) -> Node | None:
        """The node when it is a string; None when it is absent or empty, and for other shapes."""
        return self._of_shape(node, str)

    def text(self, node: Node, *keys: str) -> str:
        """The text at a path of keys, numbers as they were typed; empty when absent or not a scalar."""
        value = self.scalar(node, *keys)
        return value.text if value is not None else ""

    def scalar(self, node: Node, *keys: str) -> Value | None:
        """The scalar at a path of keys; None when absent or empty, and for a list or mapping."""
        for key in keys:
            if key not in node.entries:
                self.mapping(node)
                return None
            node = node.entries[key].value
        found = self._of_shape(node, (str, int, float))
        return found.value if found is not None else None

    def _of_shape(self, node: Node | None, shape: type | tuple[type, ...]) -> Node | None:
        if node is None or node.data is None:
            return None
        if not isinstance(node.data, shape):
            self.left_out = True
            return None
        return node

    def boolean(self, node: Node, *keys: str, default: bool) -> bool:
        """The boolean at a path of keys, or the default."""
        lowered = self.text(node, *keys).lower()
        if lowered in TRUE_WORDS or lowered in FALSE_WORDS:
            return lowered in TRUE_WORDS
        self.left_out = self.left_out or (lowered != "" and "${{" not in lowered)
        return default

    def whole_number(self, node: Node, *keys: str, least: int) -> Value | None:
        """The whole number at a path of keys as a Value of int, a binding as a Value of str; None for anything else."""
        value = self.scalar(node, *keys)
        if value is None or (isinstance(value.data, str) and "${{" in value.data):
            return value
        number = whole_number(value.data)
        if number is None or number < least:
            self.left_out = True
            return None
        return Value(number, value.span, value.text)

    def add_undeclared(
        self, key: Node, rule: Rule, message: str, declared: Iterable[str], given: Iterable[str], kind: str
    ) -> None:
        """Record that a key names no input or output (`kind`) that is declared; one that is given too is not meant."""
        name, names, others = key.text, list(declared), set(given)
        free = [other for other in names if other not in others]
        none_left = f"The component has no other {kind}s." if names else f"It has no {kind}s."
        hint = did_you_mean(name, free, none_left)
        self.add(rule.at(key.span, message, hint, replacement=only_close(name, free)))

    def check_literal(
        self, value: Value, port: Port, *, declared_elsewhere: bool = True, bound_at: Iterable[Related] = ()
    ) -> None:
        """Report a literal that does not suit a parameter; bindings and data ports are not checked.

        `bound_at` is how the literal reaches the parameter, if it is written somewhere else.
        """
        is_bound = declared_elsewhere and "${{" in (value.text_or_path or "")
        if not port.is_parameter or value.data is None or is_bound:
            return
        if trap := yaml_trap(value, port):
            quoted = f'"{value.text}"'
            self.add(YAML_TRAP.at(value.span, trap, hint=f"Quote it: {quoted}.", replacement=quoted))
        try:
            typed_literal(value, port)
        except LiteralError as error:
            declared = [port.declared] if declared_elsewhere else []
            rule = error.rule if declared_elsewhere else error.rule_of_default
            self.add(rule.at(value.span, str(error), hint=error.hint, related=(*bound_at, *declared)))

    def errors(self) -> list[Diagnostic]:
        """What was found, without repetitions of the same rule at the same place."""
        seen: dict[tuple[Span, str], Diagnostic] = {}
        for diagnostic in self.diagnostics:
            seen.setdefault((diagnostic.span, diagnostic.rule), diagnostic)
        return list(seen.values())
