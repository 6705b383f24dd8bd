"""A baseline: findings that were there when a project began to lint, silent until they are mended.

A file of JSON, one finding per line, so that a review shows which were mended. A finding is known by its rule, file,
keys and text (`lint/fingerprints.py`), never by its line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import UsageError
from trainyard.lint.fingerprints import Fingerprints, Identity
from trainyard.lint.rules.silencing import RULES, STALE_BASELINE
from trainyard.spec.diagnostic import Diagnostic, Span

FORMAT = "trainyard.lint-baseline/1"
# What is said of silenced findings is not silenced itself.
_NEVER_KNOWN = frozenset(rule.id for rule in RULES)


class UnusableBaseline(UsageError):
    """A baseline that cannot be read, or is none."""


@dataclass(frozen=True)
class Baseline:
    """Known findings with the line of the file that says so, once per line."""

    file: Path
    known: tuple[tuple[Identity, int], ...] = ()

    def sift(self, diagnostics: Iterable[Diagnostic], checked: Collection[Path]) -> list[Diagnostic]:
        """The findings that are not known, and one for each entry that a checked file no longer has."""
        fingerprints = Fingerprints(self.file.parent)
        left = Counter(identity for identity, _ in self.known)
        new = []
        for diagnostic in diagnostics:
            identity = fingerprints.identity(diagnostic)
            if left[identity] > 0 and diagnostic.rule not in _NEVER_KNOWN:
                left[identity] -= 1
            else:
                new.append(diagnostic)
        return [*new, *self._stale(left, checked)]

    def _stale(self, left: Counter[Identity], checked: Collection[Path]) -> Iterable[Diagnostic]:
        # Of equal entries the last are those that nothing was found for.
        for identity, line in reversed(self.known):
            if left[identity] > 0 and self._is_judged(identity, checked):
                left[identity] -= 1
                message = f"{identity.rule} is no longer found in {identity.file}"
                where = f" at '{identity.keys}'" if identity.keys else ""
                hint = "Take it out with `trainyard lint --write-baseline`."
                yield STALE_BASELINE.found(Span(self.file, line, 1, line, 2), message + where, hint)

    def _is_judged(self, identity: Identity, checked: Collection[Path]) -> bool:
        """Whether the file of an entry was looked at, or is gone."""
        file = self.file.parent / identity.file
        return file in checked or not file.exists()


def read_baseline(file: Path) -> Baseline:
    """A baseline as `write_baseline` leaves it. Raises UnusableBaseline."""
    try:
        text = file.read_text(encoding="utf-8")
        document = json.loads(text)
    except OSError as error:
        hint = "`trainyard lint --write-baseline` makes it."
        raise UnusableBaseline(f"baseline {file}: {(error.strerror or str(error)).lower()}. {hint}") from None
    except ValueError as error:
        raise UnusableBaseline(f"baseline {file}: not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else document
        raise UnusableBaseline(f"baseline {file}: its format is {found!r}; this Trainyard reads {FORMAT!r}.")
    try:
        known = [Identity(*(str(entry[name]) for name in Identity._fields)) for entry in document["findings"]]
    except (KeyError, TypeError) as error:
        raise UnusableBaseline(f"baseline {file}: a finding has no {error}; write the baseline anew.") from None
    lines = [number for number, line in enumerate(text.splitlines(), start=1) if line.lstrip().startswith('{"file"')]
    if len(lines) != len(known):
        # Laid out anew by another program: the whole is named.
        lines = [1] * len(known)
    return Baseline(file, tuple(zip(known, lines, strict=True)))


def write_baseline(
    file: Path, diagnostics: Sequence[Diagnostic], checked: Collection[Path], previous: Baseline | None
) -> int:
    """Write the findings as known; those of files that were not checked this time stay. Gives how many it holds."""
    fingerprints = Fingerprints(file.parent)
    identities = [fingerprints.identity(each) for each in diagnostics if each.rule not in _NEVER_KNOWN]
    if previous is not None:
        identities += [
            identity
            for identity, _ in previous.known
            if (file.parent / identity.file) not in checked and (file.parent / identity.file).exists()
        ]
    lines = ",\n".join(f"    {json.dumps(identity._asdict())}" for identity in sorted(identities))
    file.write_text(
        f'{{\n  "format": {json.dumps(FORMAT)},\n  "findings": [\n{lines}\n  ]\n}}\n', encoding="utf-8", newline="\n"
    )
    return len(identities)
