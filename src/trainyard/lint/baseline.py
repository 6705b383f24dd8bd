"""A baseline: findings from before a project started linting, which are not reported until they are fixed.

It is a JSON file with one finding per line, so that a review shows which ones were fixed. A finding is identified by
its rule, file, keys and text (`lint/fingerprints.py`), never by its line.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import UsageError
from trainyard.lint.fingerprints import Fingerprints, Identity
from trainyard.lint.rules.linting import ABOUT_IGNORING, STALE_BASELINE
from trainyard.project_files import LARGEST_BYTES, write_text
from trainyard.settings.files import read_regular
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Document, read_document, shorten

FORMAT = "trainyard.lint-baseline/1"
_REWRITE = "Delete it, and write a new one with `trainyard lint --write-baseline`."
# Findings about ignored findings are never part of a baseline.
_NEVER_KNOWN = frozenset(rule.id for rule in ABOUT_IGNORING)


class UnusableBaseline(UsageError):
    """A baseline that cannot be read, or is not a baseline."""


@dataclass(frozen=True)
class Baseline:
    """Known findings, each with its place in the baseline; `file` is absolute."""

    file: Path
    known: tuple[tuple[Identity, Span], ...] = ()

    def new_findings(
        self,
        diagnostics: Iterable[Diagnostic],
        checked: Collection[Path],
        read: Callable[[Path], Document] = read_document,
    ) -> list[Diagnostic]:
        """Return the findings that are not known, and one for each entry that no longer applies to a checked file."""
        fingerprints = Fingerprints(self.file.parent, read)
        left = Counter(identity for identity, _ in self.known)
        new = []
        for diagnostic in diagnostics:
            identity = fingerprints.identity(diagnostic)
            if left[identity] > 0 and diagnostic.rule not in _NEVER_KNOWN:
                left[identity] -= 1
            else:
                new.append(diagnostic)
        if any(diagnostic.severity == "error" for diagnostic in new):
            return new  # an error may keep the checks of other files from running
        return [*new, *sorted(self._stale(left, checked), key=lambda diagnostic: diagnostic.span)]

    def _stale(self, left: Counter[Identity], checked: Collection[Path]) -> Iterable[Diagnostic]:
        # Of equal entries, the last ones are the stale ones.
        for identity, span in reversed(self.known):
            file = _file_of(identity, self.file.parent)
            if left[identity] > 0 and (file in checked or not file.exists()):
                left[identity] -= 1
                message = f"{identity.rule} no longer occurs in {identity.file}"
                where = f" at '{identity.keys}'" if identity.keys else ""
                hint = "Remove it with `trainyard lint --write-baseline`."
                yield STALE_BASELINE.at(span, message + where, hint)


def read_baseline(file: Path) -> Baseline:
    """Read a baseline written by `write_baseline`. Raise UnusableBaseline if it is not one."""
    try:
        text = read_regular(file, LARGEST_BYTES).decode()
        document = json.loads(text)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _unusable(file, reason, "`trainyard lint --write-baseline` creates it.") from None
    except (ValueError, RecursionError) as error:
        raise _unusable(file, f"not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else document
        raise _unusable(file, f"unknown format {shorten(repr(found))}; expected '{FORMAT}'")
    entries = document.get("findings")
    if not isinstance(entries, list):
        raise _unusable(file, "'findings' must be a list")
    known = [_identity(file, number, entry) for number, entry in enumerate(entries, start=1)]
    absolute = Path(os.path.abspath(file))
    return Baseline(absolute, tuple(zip(known, _spans(absolute, text, len(known)), strict=True)))


def _unusable(file: Path, reason: str, fix: str = _REWRITE) -> UnusableBaseline:
    return UnusableBaseline(f"baseline {file}: {reason}. {fix}")


def _identity(file: Path, number: int, entry: object) -> Identity:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(name), str) for name in Identity._fields):
        expected = ", ".join(Identity._fields)
        raise _unusable(file, f"finding {number} must be an object of strings: {expected}")
    return Identity(*(entry[name] for name in Identity._fields))


def _spans(file: Path, text: str, findings: int) -> list[Span]:
    """Return the place of each entry; the start of the file for all if another program has reformatted it."""
    spans = [
        Span(file, number, line.index("{") + 1, number, len(line.rstrip(", ")) + 1)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.lstrip().startswith('{"file"')
    ]
    return spans if len(spans) == findings else [Span(file, 1, 1, 1, 2)] * findings


def write_baseline(
    file: Path,
    diagnostics: Sequence[Diagnostic],
    checked: Collection[Path],
    previous: Baseline | None,
    root: Path | None = None,
) -> int:
    """Write findings to a baseline, keep the entries of files that were not checked, and return their number.

    Raise OutsideRoot for a file that is not below `root`, if that is given.
    """
    folder = Path(os.path.abspath(file)).parent
    fingerprints = Fingerprints(folder)
    identities = [fingerprints.identity(each) for each in diagnostics if each.rule not in _NEVER_KNOWN]
    if previous is not None:
        identities += [
            identity
            for identity, _ in previous.known
            if _file_of(identity, folder) not in checked and _file_of(identity, folder).exists()
        ]
    lines = ",".join(f"\n    {json.dumps(identity._asdict())}" for identity in sorted(identities))
    text = f'{{\n  "format": {json.dumps(FORMAT)},\n  "findings": [{lines}\n  ]\n}}\n'
    write_text(file, text, root or folder)
    return len(identities)


def _file_of(identity: Identity, folder: Path) -> Path:
    """Return the file of a finding as the linter names it: absolute, without `..`."""
    return Path(os.path.abspath(folder / identity.file))
