"""What a rule is: its name, how much it matters, what it means, and one example, wrong and right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span

EXAMPLE_FILE = "example.yaml"
_CHANGE = re.compile("‹([^⇒›]*)⇒([^›]*)›")
_POINTER = "‸"
_FILE_LINE = re.compile(r"^=== (\S+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A few files, wrong and right in one text.

    `‹wrong⇒right›` stands where the two differ. The finding is expected where the first of these begins, or at a `‸`.
    A line `=== NAME` begins a further file; what stands before the first of these lines is `example.yaml`.
    """

    text: str

    @property
    def wrong(self) -> dict[str, str]:
        """The files, by name, with the mistake."""
        return self._files(1)

    @property
    def right(self) -> dict[str, str]:
        """The files, by name, without it."""
        return self._files(2)

    @property
    def place(self) -> tuple[str, int, int]:
        """The file, line and column of the finding."""
        marked = _CHANGE.sub(lambda match: match[1] if _POINTER in self.text else _POINTER + match[1], self.text)
        name, content = next((name, content) for name, content in _split(marked).items() if _POINTER in content)
        before = content[: content.index(_POINTER)]
        return name, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1

    def _files(self, side: int) -> dict[str, str]:
        return _split(_CHANGE.sub(lambda match: match[side], self.text).replace(_POINTER, ""))


def _split(text: str) -> dict[str, str]:
    first, *others = _FILE_LINE.split(text)
    named = dict(zip(others[::2], others[1::2], strict=True))
    return {EXAMPLE_FILE: first, **named} if first else named


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong.

    `severity` is None for what stops a local run but is no mistake in the YAML. `detail` says what Azure ML does with
    it, and what to do. Only what no short text can show (a file that cannot be read) has no example.
    What is often the consequence of another mistake `needs_clean_file`: it is said of files without errors alone.
    """

    id: str
    name: str
    severity: Severity | None
    meaning: str
    detail: str
    example: Example | None = None
    needs_clean_file: bool = False

    def found(
        self, span: Span, message: str, hint: str = "", related: Iterable[Related] = (), replacement: str | None = None
    ) -> Diagnostic:
        """A finding of this rule."""
        assert self.severity is not None
        return Diagnostic(span, self.id, message, self.severity, hint, tuple(related), replacement)


def by_id(*tables: tuple[Rule, ...]) -> Mapping[str, Rule]:
    """Tables of rules as one, by id."""
    rules = [rule for table in tables for rule in table]
    found = {rule.id: rule for rule in rules}
    assert len(found) == len(rules), "two rules have one id"
    return found
