"""How the command line talks: diagnostics and errors to stderr, tables and figures for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from trainyard.spec.diagnostic import Diagnostic


def colour_choice() -> bool | None:
    """None lets each stream decide (colour on terminals); False where NO_COLOR is set (https://no-color.org)."""
    return False if os.environ.get("NO_COLOR") else None


def take_any_character() -> None:
    """Have stdout and stderr write out (`\\u2026`) what their encoding does not hold, rather than fail at it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_diagnostics(diagnostics: Sequence[Diagnostic]) -> None:
    """Findings on stderr, each with its line and a caret."""
    import shutil

    from trainyard.lint.reporting.excerpts import WIDEST
    from trainyard.lint.reporting.text import as_text

    if diagnostics:
        is_terminal = sys.stderr.isatty()
        colour = is_terminal and colour_choice() is None
        widest = min(WIDEST, shutil.get_terminal_size().columns) if is_terminal else WIDEST
        click.echo(as_text(diagnostics, colour=colour, relative_to=Path.cwd(), widest=widest), err=True, color=colour)


def fail(message: str, exit_code: int) -> NoReturn:
    """One error on stderr, and the end."""
    click.echo(f"{click.style('error', fg='red')}: {message}", err=True, color=colour_choice())
    sys.exit(exit_code)


def describe_os_error(error: OSError) -> str:
    """What the system refused, in a line: the file, and the reason."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{(error.strerror or str(error)).lower()}"


def short(path: Path) -> Path:
    """The path as a person would type it: relative where it lies below the working directory."""
    absolute = Path(os.path.abspath(path))
    return absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else path


def program() -> str:
    """How to call this program from here: by its name where that is found, else by its path."""
    import shutil

    called = Path(sys.argv[0])
    if called.name != "trainyard" or shutil.which("trainyard"):
        return "trainyard"
    return str(short(called))


def count(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def seconds(duration: float | None) -> str:
    """A duration as people say it."""
    if duration is None:
        return "-"
    return f"{duration:.1f} s" if duration < 120 else f"{duration / 60:.1f} min"


def when(timestamp: str) -> str:
    """A record's timestamp without what nobody reads: `2026-11-20 22:57:42 UTC`."""
    return timestamp[:19].replace("T", " ") + " UTC"


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns aligned to the left."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
