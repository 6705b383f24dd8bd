"""`lint --fix`: fixes what is safe to fix, in place, and leaves every other byte as it is.

A fix is only written if its file still parses, the finding is gone, and no error is where it was written. Other errors
that appear were there before, hidden by what was fixed. If all fixes together fail this test, they are tried by halves.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.errors import UserError
from trainyard.lint.linter import LintResult
from trainyard.project_files import OutsideRoot, read_text, require_within, write_text
from trainyard.spec.diagnostic import Diagnostic, SpecError
from trainyard.spec.documents import parse_document
from trainyard.spec.rules import DUPLICATE_KEY, NAME_CLASH
from trainyard.spec.yaml_parsing import line_starts

_BOM = "\ufeff"
_QUOTES = ("'", '"')
# Each round fixes what the previous one revealed; a binding has fewer names than this.
_MOST_ROUNDS = 8

# What was not there before is a fix's own work: a key that there is twice, and names that become the same.
_CAUSED = frozenset({DUPLICATE_KEY.id, NAME_CLASH.id})

# Lint with some files' text instead of what is on disk.
Relint = Callable[[Mapping[Path, str]], LintResult]


@dataclass(frozen=True)
class Fixed:
    """The findings that were fixed, and what lint reports now; `uncovered` of that was hidden before."""

    fixed: tuple[Diagnostic, ...]
    result: LintResult
    uncovered: tuple[Diagnostic, ...] = ()


_ANYWHERE = Path(os.sep)


def fix(
    result: LintResult, relint: Relint, is_writable: Callable[[Path], bool] = lambda _: True, root: Path = _ANYWHERE
) -> Fixed:
    """Write the fixes of findings, and lint again. Files that are not `is_writable` are left alone.

    Nothing outside of `root` is written, whatever refers to it.

    What a fix reveals is fixed too, so that a second call has nothing to do.
    """
    texts: dict[Path, str] = {}
    before: dict[Path, str] = {}
    done: list[Diagnostic] = []
    known = Counter(map(_matter, result.diagnostics))
    for _ in range(_MOST_ROUNDS):
        wanted = [each for each in result.diagnostics if each.replacement is not None]
        fixable = [each for each in wanted if _is_below(each.span.file, root) and is_writable(each.span.file)]
        this_round = _Round(texts, result, relint)
        fixed, written = this_round.fix(fixable)
        if not fixed:
            break
        done += fixed
        before = {**{file: this_round.text_of(file) for file in written}, **before}
        texts.update(written)
        result = relint(_without_marks(texts))
    for file in texts:
        _refuse_if_unwritable(file, before[file])
    for file, text in texts.items():
        write_text(Path(os.path.realpath(file)), text, root)
    uncovered = []
    for each in result.diagnostics:
        known[_matter(each)] -= 1
        if known[_matter(each)] < 0:
            uncovered.append(each)
    return Fixed(tuple(done), result, tuple(uncovered))


def _is_below(file: Path, root: Path) -> bool:
    try:
        require_within(Path(os.path.realpath(file)), root)
    except OutsideRoot:
        return False
    return True


class _Round:
    """The fixes of one result, all relative to the same texts."""

    def __init__(self, texts: Mapping[Path, str], result: LintResult, relint: Relint) -> None:
        self._texts = texts
        self._result = result
        self._relint = relint
        self._read: dict[Path, str | None] = {}

    def fix(self, fixable: Sequence[Diagnostic]) -> tuple[list[Diagnostic], dict[Path, str]]:
        """Return the findings that can be fixed safely, and the text of the files they are in."""
        readable = [diagnostic for diagnostic in fixable if self._before(diagnostic.span.file) is not None]
        return self._write_in(self._add(readable, []))

    def _add(self, more: Sequence[Diagnostic], chosen: list[Diagnostic]) -> list[Diagnostic]:
        """Return the chosen fixes with those of `more` that are safe: all at once if possible, else by halves."""
        if not more:
            return chosen
        if self._is_good([*chosen, *more]):
            return [*chosen, *more]
        if len(more) == 1:
            return chosen
        middle = len(more) // 2
        return self._add(more[middle:], self._add(more[:middle], chosen))

    def _is_good(self, fixes: Sequence[Diagnostic]) -> bool:
        """Return whether all of these can be written, fix their findings, and are not errors themselves."""
        done, texts = self._write_in(fixes)
        if len(done) < len(fixes) or not all(_parses(file, text) for file, text in texts.items()):
            return False
        found = self._relint(_without_marks({**self._texts, **texts})).diagnostics
        before, after = (Counter(map(_matter, each)) for each in (self._result.diagnostics, found))
        errors = {_matter(each): each for each in found if each.severity == "error"}
        is_fixed = all(
            after[matter] + count <= before[matter] for matter, count in Counter(map(_matter, fixes)).items()
        )
        new = [error for matter, error in errors.items() if after[matter] > before[matter]]
        return is_fixed and not any(error.rule in _CAUSED or _is_within(error, fixes) for error in new)

    def _write_in(self, fixes: Sequence[Diagnostic]) -> tuple[list[Diagnostic], dict[Path, str]]:
        by_file: dict[Path, list[Diagnostic]] = {}
        for diagnostic in fixes:
            by_file.setdefault(diagnostic.span.file, []).append(diagnostic)
        done, texts = [], {}
        for file, wanted in by_file.items():
            texts[file], written = apply(self.text_of(file), wanted)
            done += written
        return done, texts

    def text_of(self, file: Path) -> str:
        """Return the text that a file's fixes are relative to."""
        text = self._before(file)
        assert text is not None
        return text

    def _before(self, file: Path) -> str | None:
        if file not in self._read:
            self._read[file] = self._texts[file] if file in self._texts else _read(file)
        return self._read[file]


def apply(text: str, fixable: Iterable[Diagnostic]) -> tuple[str, list[Diagnostic]]:
    """Return text with replacements applied, and the findings they are from. Of two that overlap, apply the first."""
    starts = line_starts(text.removeprefix(_BOM))
    shift = len(text) - len(text.removeprefix(_BOM))
    parts, at, done = [], 0, []
    for diagnostic in sorted(fixable, key=lambda each: each.span):
        span = diagnostic.span
        if span.end_line > len(starts):
            continue
        start = starts[span.line - 1] + span.column - 1 + shift
        end = starts[span.end_line - 1] + span.end_column - 1 + shift
        written = written_as(text[start:end], diagnostic.replacement)
        if written is None or start < at:
            continue
        parts += [text[at:start], written]
        at = end
        done.append(diagnostic)
    return "".join([*parts, text[at:]]), done


def written_as(old: str, new: str | None) -> str | None:
    """Return a replacement as it is written in place of `old`, with its quotes; None if that is uncertain."""
    if new is None or not old.strip() or "\n" in old or "\r" in old or old[0] in "&!|>*":
        return None
    if old[0] in _QUOTES and new[0] not in _QUOTES:
        return f"{old[0]}{new}{old[0]}" if old[-1] == old[0] and "\\" not in new and old[0] not in new else None
    return new


def _is_within(error: Diagnostic, fixes: Sequence[Diagnostic]) -> bool:
    """Whether an error is about what a fix wrote."""
    return any(
        (error.span.file, error.span.line) == (each.span.file, each.span.line)
        and error.span.column < each.span.column + len(each.replacement or "")
        and error.span.end_column > each.span.column
        for each in fixes
    )


def _matter(diagnostic: Diagnostic) -> tuple[Path, str, str]:
    """Return what identifies a finding without its line: a fix moves what follows it."""
    return diagnostic.span.file, diagnostic.rule, diagnostic.message


def _without_marks(texts: Mapping[Path, str]) -> dict[Path, str]:
    """Return files' text without byte order marks, as documents are read."""
    return {file: text.removeprefix(_BOM) for file, text in texts.items()}


def _parses(file: Path, text: str) -> bool:
    try:
        parse_document(file, text.removeprefix(_BOM))
    except SpecError:
        return False
    return True


def _read(file: Path) -> str | None:
    """Return the text with its line ends and byte order mark; None if it is not UTF-8."""
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError):
        return None


def _refuse_if_unwritable(file: Path, before: str) -> None:
    """Raise UserError, before any file is written, for one that is not writable or has changed since it was read."""
    target = Path(os.path.realpath(file))
    if not (os.access(target, os.W_OK) and os.access(target.parent, os.W_OK)):
        raise UserError(f"cannot write the fixes of {file}: permission denied. Nothing was changed.")
    if _read(file) != before:
        raise UserError(f"{file} was changed while lint was running. Nothing was fixed; run it again.")
