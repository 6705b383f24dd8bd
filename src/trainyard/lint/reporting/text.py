"""Findings as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.lint.reporting.excerpts import WIDEST, Sources
from trainyard.lint.reporting.places import file_name, printable
from trainyard.spec.diagnostic import Diagnostic, Severity, Span

_RESET, _BOLD, _BLUE, _GREEN = "\x1b[0m", "\x1b[1m", "\x1b[34m", "\x1b[32m"
_COLOUR: dict[Severity, str] = {"error": "\x1b[31m", "warning": "\x1b[33m", "info": "\x1b[36m"}


def as_text(diagnostics: Sequence[Diagnostic], *, colour: bool, relative_to: Path, widest: int = WIDEST) -> str:
    """Findings with place, message, the source line with the culprit underlined, the hint, and related places.

    File names are written relative to a folder where that is shorter. `colour` adds ANSI sequences; `widest` is how
    many cells a source line may take.
    """
    sources = Sources()
    return "\n\n".join(_one(diagnostic, sources, colour, relative_to, widest) for diagnostic in diagnostics)


def _one(diagnostic: Diagnostic, sources: Sources, colour: bool, relative_to: Path, widest: int) -> str:
    def paint(text: str, *codes: str) -> str:
        return f"{''.join(codes)}{text}{_RESET}" if colour and text else text

    of_severity = _COLOUR[diagnostic.severity]
    place = paint(_place(diagnostic.span, relative_to), _BOLD)
    label = paint(f"{diagnostic.severity}[{diagnostic.rule}]", _BOLD, of_severity)
    lines = [f"{place}: {label} {printable(diagnostic.message)}"]
    gutter = f"{diagnostic.span.line} |"
    excerpt = sources.excerpt(diagnostic.span, widest - len(gutter) - 1)
    if excerpt is not None:
        source = f"{excerpt.before}{paint(excerpt.culprit, _BOLD, of_severity)}{excerpt.after}"
        lines.append(f"{paint(gutter, _BLUE)} {source}")
        lines.append(f"{paint('|'.rjust(len(gutter)), _BLUE)} {paint(excerpt.carets, of_severity)}")
    if diagnostic.hint:
        lines.append(f"  {paint('hint:', _BOLD, _GREEN)} {printable(diagnostic.hint)}")
    for related in diagnostic.related:
        lines.append(f"  {paint(_place(related.span, relative_to), _BLUE)}: {printable(related.message)}")
    return "\n".join(lines)


def _place(span: Span, relative_to: Path) -> str:
    return f"{printable(file_name(span.file, relative_to))}:{span.line}:{span.column}"
