"""What the command line prints, and how: diagnostics and errors to stderr, tables and facts to stdout."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import click

from trainyard import printing

if TYPE_CHECKING:
    from trainyard.spec.diagnostic import Diagnostic


short = printing.short


def colour_choice() -> bool | None:
    """Return False where NO_COLOR is set (https://no-color.org), else None: colour on terminals only."""
    return False if os.environ.get("NO_COLOR") else None


def write_out_unencodable() -> None:
    """Make stdout and stderr escape characters that their encoding lacks (`\\u2026`) instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_diagnostics(diagnostics: Sequence[Diagnostic], texts: Mapping[Path, str] = MappingProxyType({})) -> None:
    """Print findings on stderr, each with its line and a caret. `texts` are shown instead of the files on disk."""
    if diagnostics:
        import shutil

        from trainyard.lint.text_output import WIDEST, as_text

        is_terminal = sys.stderr.isatty()
        colour = is_terminal and colour_choice() is None
        widest = min(WIDEST, shutil.get_terminal_size().columns) if is_terminal else WIDEST
        text = as_text(diagnostics, colour=colour, relative_to=Path.cwd(), widest=widest, texts=texts)
        click.echo(text, err=True, color=colour)


def print_error(message: str) -> None:
    """Print one error on stderr."""
    click.echo(f"{click.style('error', fg='red')}: {message}", err=True, color=colour_choice())


def fail(message: str, exit_code: int) -> NoReturn:
    """Print one error on stderr and exit."""
    print_error(message)
    sys.exit(exit_code)


def print_notes(lines: Iterable[str]) -> None:
    """Print lines about what was done on stderr."""
    for line in lines:
        click.echo(line, err=True)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print label and text, one pair per line, aligned."""
    for line in printing.facts(facts, 18):
        click.echo(line)


def print_next(*steps: tuple[str, str]) -> None:
    """Print what to do next, each with its purpose, which may be empty."""
    lines = [f"{what}  # {purpose}" if purpose else what for what, purpose in steps]
    print_facts(zip(("next", *[""] * len(lines)), lines, strict=False))


def program() -> str:
    """Return how to call this program from here, as a shell takes it: `trainyard` if on the PATH, else its path."""
    import shlex
    import shutil

    called = Path(sys.argv[0])
    if called.name != "trainyard" or shutil.which("trainyard"):
        return "trainyard"
    return shlex.quote(str(short(called)))


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table with left-aligned columns."""
    return "\n".join(printing.table([header, *rows]))
