"""Findings as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainyard.lint.reporting.excerpts import Sources
from trainyard.lint.reporting.places import file_name, printable
from trainyard.spec.diagnostic import Diagnostic, Severity, Span

_RESET, _BOLD, _BLUE = "\x1b[0m", "\x1b[1m", "\x1b[34m"
_COLOUR: dict[Severity, str] = {"error": "\x1b[31m", "warning": "\x1b[33m", "info": "\x1b[36m"}


def as_text(diagnostics: Sequence[Diagnostic], *, colour: bool, relative_to: Path) -> str:
    """Findings with place, message, the source line with the culprit underlined, the hint, and related places.

    File names are written relative to a folder where that is shorter. `colour` adds ANSI sequences.
    """
    sources = Sources()
    return "\n".join(_one(diagnostic, sources, colour, relative_to) for diagnostic in diagnostics)


def _one(diagnostic: Diagnostic, sources: Sources, colour: bool, relative_to: Path) -> str:
    def paint(text: str, *codes: str) -> str:
        return f"{''.join(codes)}{text}{_RESET}" if colour else text

    severity_colour = _COLOUR[diagnostic.severity]
    place = paint(_place(diagnostic.span, relative_to), _BOLD)
    label = paint(f"{diagnostic.severity}[{diagnostic.rule}]", _BOLD, severity_colour)
    lines = [f"{place}: {label} {printable(diagnostic.message)}"]
    excerpt = sources.excerpt(diagnostic.span)
    if excerpt is not None:
        gutter = len(str(diagnostic.span.line))
        lines.append(f"{paint(f'{diagnostic.span.line} |', _BLUE)} {excerpt.source}")
        lines.append(f"{paint(' ' * gutter + ' |', _BLUE)} {paint(excerpt.carets, severity_colour)}")
    if diagnostic.hint:
        lines.append(f"  hint: {printable(diagnostic.hint)}")
    for related in diagnostic.related:
        lines.append(f"  {_place(related.span, relative_to)}: {printable(related.message)}")
    return "\n".join(lines)


def _place(span: Span, relative_to: Path) -> str:
    return f"{printable(file_name(span.file, relative_to))}:{span.line}:{span.column}"
