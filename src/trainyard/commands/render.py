"""`trainyard render`: write the rendered files, show what would change, or check for drift."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from trainyard.author import drift as drifts
from trainyard.author.rendering import Rendering, render
from trainyard.author.settings import read_settings
from trainyard.author.writing import write
from trainyard.commands import working_folder
from trainyard.commands.rendered_meaning import meanings
from trainyard.foundation.quantities import counted
from trainyard.terminal import print_error, short


def check(profile: str | None, settings: Sequence[str], out: Path | None) -> bool:
    """Print the difference of every file that has drifted from its template or profile; return whether none has."""
    found = drifts.find_drift(working_folder.project(), profile, read_settings(settings), out)
    for drift in found:
        click.echo(f"{short(drift.path)}: {drift.reason}", err=True)
        click.echo(drift.diff, nl=False)
    if found:
        print_error(
            f"{counted(len(found), 'rendered file')} drifted: edit templates/ or profiles/, then run `trainyard render`"
        )
    else:
        click.echo("rendered files match their templates and profile", err=True)
    return not found


def show_difference(profile: str | None, settings: Sequence[str], out: Path | None) -> None:
    """Print what rendering this profile would change on disk: what that means for each pipeline, then the lines."""
    project = working_folder.project()
    rendering = render(project, profile, read_settings(settings), out)
    _print_adjustments(rendering)
    for text in meanings(project, rendering):
        click.echo(f"{text}\n")
    click.echo(drifts.difference(project, rendering), nl=False)


def write_files(profile: str | None, settings: Sequence[str], out: Path | None) -> None:
    """Render and write every file, and report what changed."""
    project = working_folder.project()
    rendering = render(project, profile, read_settings(settings), out)
    for line in write(project, rendering).lines():
        click.echo(line, err=True)
    _print_adjustments(rendering)


def _print_adjustments(rendering: Rendering) -> None:
    for line in rendering.profile.adjustments:
        click.echo(line, err=True)
