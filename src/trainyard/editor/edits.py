"""Changes that an editor offers: fixes of findings, comments that accept them, and new names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pygls.exceptions import JsonRpcInvalidParams

from trainyard.editor.cursor import cursor_at
from trainyard.editor.symbols import RENAMABLE, Symbol, Symbols
from trainyard.editor.workspace import EditorWorkspace
from trainyard.lint.fixes import written_as
from trainyard.lint.rules import RULES
from trainyard.lint.suggested_fixes import suggested
from trainyard.render.rendered_files import read_header
from trainyard.spec.diagnostic import Diagnostic, Span
from trainyard.spec.documents import Document
from trainyard.spec.yaml_parsing import line_starts

_NEW_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Edit:
    """Text in place of what a span covers."""

    span: Span
    text: str


@dataclass(frozen=True)
class Action:
    """A change of one file that is offered for a finding."""

    title: str
    edits: tuple[Edit, ...]
    finding: Diagnostic
    is_fix: bool


def fixes(findings: Iterable[Diagnostic], text: str) -> Iterator[Action]:
    """Yield the fix of each finding that has one, or what its hint suggests; `text` is that of their file."""
    template = template_of(text)
    where = f" (and in templates/{template}, which this is rendered from)" if template is not None else ""
    for finding in findings:
        covered = text_at(finding.span, text) if finding.replacement is None else None
        found = suggested(finding, covered) if covered is not None else None
        edit = _fix(finding if found is None else finding._replace(replacement=found.text), text)
        if edit is not None:
            yield Action(f"Write {edit.text}{where}", (edit,), finding, is_fix=found is None or found.is_sure)


def ignore_comments(findings: Iterable[Diagnostic], document: Document) -> Iterator[Action]:
    """Yield a comment for each finding that a comment can accept."""
    for finding in findings:
        rule = RULES.get(finding.rule)
        if rule is None or not finding.rule.startswith("AML"):
            continue
        cursor = cursor_at(document, finding.span.line, finding.span.column)
        # A comment applies to the line that a value starts in; within a multi-line string it would be text.
        line = cursor.node.span.line if cursor is not None else finding.span.line
        if line > len(document.lines):
            continue
        written = document.lines[line - 1]
        indent = written[: len(written) - len(written.lstrip(" "))]
        comment = f"{indent}# trainyard: ignore[{finding.rule}] \n"
        edit = Edit(Span(document.file, line, 1, line, 1), comment)
        yield Action(f"Accept {finding.rule} here, with a comment", (edit,), finding, is_fix=False)


def all_fixes(findings: Iterable[Diagnostic], text: str) -> tuple[Edit, ...]:
    """Return the fixes of all findings in a file; of two that overlap, the first."""
    edits: list[Edit] = []
    for edit in sorted((e for f in findings if (e := _fix(f, text)) is not None), key=lambda each: each.span):
        last = edits[-1].span if edits else None
        if last is None or (last.end_line, last.end_column) <= (edit.span.line, edit.span.column):
            edits.append(edit)
    return tuple(edits)


def _fix(finding: Diagnostic, text: str) -> Edit | None:
    old = text_at(finding.span, text)
    new = written_as(old, finding.replacement) if old is not None else None
    return Edit(finding.span, new) if new is not None else None


def text_at(span: Span, text: str) -> str | None:
    """Return what a span covers; None if the text has no such place."""
    starts = line_starts(text)
    if span.end_line > len(starts):
        return None
    return text[starts[span.line - 1] + span.column - 1 : starts[span.end_line - 1] + span.end_column - 1]


def template_of(text: str) -> str | None:
    """Return the template that a file was rendered from, as named in its header; None if it was not rendered."""
    header = read_header(text)
    return header.template if header is not None else None


class CannotRename(JsonRpcInvalidParams):
    """Something that has no name of its own, or a name that is taken or invalid."""


def renamable(symbol: Symbol | None) -> Symbol:
    """Return an input, output or job. Raise CannotRename for anything else."""
    if symbol is None or symbol.kind not in RENAMABLE:
        raise CannotRename("only inputs, outputs and jobs can be renamed here")
    return symbol


def rename(workspace: EditorWorkspace, symbols: Symbols, symbol: Symbol, new_name: str) -> dict[Path, list[Edit]]:
    """Return the edits that give an input, output or job another name everywhere. Raise CannotRename if that is unsafe.

    In files, these are: where it is declared, the commands and bindings that use it, the jobs that set it.
    """
    if _NEW_NAME.fullmatch(new_name) is None:
        raise CannotRename(f"invalid name '{new_name}': expected letters, digits and underscores, not a digit first")
    edits: dict[Path, list[Edit]] = {}
    for each in symbols.of(symbol.target):
        text = workspace.text_of(each.span.file)
        old = text_at(each.span, text)
        new = written_as(old, new_name) if old is not None and old.strip("'\"") == symbol.name else None
        if new is None:
            place = f"{each.span.file.name}:{each.span.line}"
            raise CannotRename(f"{place}: '{symbol.name}' is written in a way that cannot be replaced safely")
        _refuse_if_taken(symbols, each, symbol.name, new_name)
        edits.setdefault(each.span.file, []).append(Edit(each.span, new))
    return edits


def _refuse_if_taken(symbols: Symbols, symbol: Symbol, old: str, new: str) -> None:
    document = symbols.store.find(symbol.span.file)
    cursor = cursor_at(document, symbol.span.line, symbol.span.column) if document is not None else None
    if cursor is None or not cursor.is_key:
        return
    taken = next((name for name in cursor.holders[-1].entries if name.lower() == new.lower() and name != old), None)
    if taken is not None:
        raise CannotRename(f"{symbol.span.file.name}:{symbol.span.line}: there is a '{taken}' beside '{old}'")
