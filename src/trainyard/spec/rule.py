"""A rule: its id, name, severity and explanation, with one example that is wrong and right.

Rules that the readers of `spec` report are declared there, those of several readers in `spec/rules.py`; those of the
linter are beside their checks in `lint/rules/`. A rule's example is a file of its own, `spec/rule_examples/ID.txt`,
which no check has to load. `trainyard explain`, the documentation site's pages and the tests are all driven by both.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from trainyard.resources import PACKAGE
from trainyard.settings.regex import regex
from trainyard.settings.suggestions import only_close
from trainyard.spec.diagnostic import Diagnostic, Related, Severity, Span

EXAMPLE_FILE = "example.yaml"
_EXAMPLES = PACKAGE / "spec" / "rule_examples"
_CHANGE = regex("‹([^⇒›]*)⇒([^›]*)›")
_POINTER = "‸"
_FILE_LINE = regex(r"^=== (\S+)\n", re.MULTILINE)
_HEAD_LINE = regex(r"^@(command|pipeline)(?: (\S+))?(?: (\S+))?\n", re.MULTILINE)


class Example(NamedTuple):
    """One or more files, wrong and right in a single text.

    `‹wrong⇒right›` marks where the two differ. The finding is expected at the first of these marks, or at a `‸`.
    A line `=== NAME` starts another file; what precedes the first such line is `example.yaml`. A line
    `@command NAME CODE` or `@pipeline COMPONENT` stands for the keys that a command or a pipeline begins with; of a
    command without a name, the name is `-`.
    """

    text: str

    @property
    def wrong(self) -> dict[str, str]:
        """The files with the mistake, by name."""
        return self._files(1)

    @property
    def right(self) -> dict[str, str]:
        """The files without the mistake, by name."""
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
    first, *others = _FILE_LINE.split(_HEAD_LINE.sub(_head, text))
    named = dict(zip(others[::2], others[1::2], strict=True))
    return {EXAMPLE_FILE: first, **named} if first else named


def _head(line: re.Match[str]) -> str:
    kind, first, second = line.groups()
    if kind == "pipeline":
        jobs = f"jobs:\n  train:\n    component: {first}\n" if first else ""
        return f"type: pipeline\nsettings: {{default_compute: azureml:cpus}}\n{jobs}"
    name = f"name: {first}\n" if first and first != "-" else ""
    code = f"code: {second}\n" if second else ""
    return f"type: command\n{name}{code}environment: azureml:torch:3\n"


class Rule(NamedTuple):
    """One kind of problem, with its texts, which `explained` adds.

    `summary` is one sentence on what is wrong; `why` says what Azure ML does with it and how to fix it.
    """

    id: str
    name: str
    severity: Severity
    summary: str = ""
    why: str = ""
    suppressed_by_errors: bool = False
    """Not reported in a file that has errors, because it is often just a consequence of one of them."""
    pedantic: bool = False
    """Only reported with `--pedantic`, or if the settings give the rule a severity: careful teams disagree on it."""
    local_run_only: bool = False
    """Stops `trainyard run`, but is not a mistake in the YAML: `trainyard lint` does not report it."""

    is_let_pass: bool = False
    """Errors are only reported by `trainyard run`: Azure ML takes them, or the job's own program decides."""

    def explained(self, *, summary: str, why: str) -> "Rule":
        """Return the rule with its text."""
        return self._replace(summary=summary, why=why)

    @property
    def example(self) -> Example | None:
        """A file that is wrong and right; None for what no short file can show, as one that cannot be read."""
        file = _EXAMPLES / f"{self.id}.txt"
        return Example(file.read_text(encoding="utf-8")) if file.is_file() else None

    def at(
        self,
        span: Span,
        message: str,
        hint: str = "",
        related: Iterable[Related] = (),
        replacement: str | None = None,
        severity: Severity | None = None,
    ) -> Diagnostic:
        """Return a finding of this rule, with the rule's severity unless another one is given."""
        severity, stops_a_run = severity or self.severity, not self.is_let_pass
        return Diagnostic(span, self.id, message, severity, hint, tuple(related), replacement, stops_a_run)

    def misspelt(
        self, span: Span, word: str, known: Collection[str], message: str, severity: Severity | None = None
    ) -> Iterator[Diagnostic]:
        """Yield a finding for a word that differs by a typo from a known one, which its hint names."""
        meant = only_close(word, known) if word not in known else None
        if meant is not None:
            yield self.at(span, message, f"Did you mean '{meant}'?", severity=severity)
