"""`trainyard render`: write the rendered files, show what would change, or check for drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from trainyard.commands import working_folder
from trainyard.project_files import limit_reading, root_of
from trainyard.render import drift as drifts
from trainyard.render.limited_rendering import render_limited
from trainyard.render.rendering import Rendering, render
from trainyard.render.settings import read_applied, read_settings
from trainyard.render.writing import write
from trainyard.settings.quantities import counted
from trainyard.terminal import print_error, short


@dataclass(frozen=True)
class RenderOptions:
    """What is rendered, and where to: the arguments of `trainyard render`. `--set` takes precedence over `--apply`."""

    profile: str | None
    set_arguments: Sequence[str]
    applied: Path | None
    out: Path | None

    def settings(self) -> dict[str, object]:
        """Return the changed values, by dotted key. UsageError and SpecError for what cannot be read."""
        applied = read_applied(self.applied) if self.applied is not None else {}
        return {**applied, **read_settings(self.set_arguments)}


def check(options: RenderOptions) -> bool:
    """Print the difference of every file that has drifted from its template or profile; return whether none has."""
    project, settings = working_folder.project(), options.settings()
    limit_reading(root_of([project.root, *([options.out] if options.out else [])]))
    found = drifts.find_drift(project, options.profile, settings, options.out)
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


def show_difference(options: RenderOptions, *, whole: bool) -> None:
    """Print what rendering this profile would change on disk: on one screen, or the whole with every line."""
    from trainyard.commands.rendered_meaning import meanings  # an eighth of the time of a rendering without it
    from trainyard.commands.rendering_summary import summary

    project = working_folder.project()
    settings = options.settings()
    limit_reading(root_of([project.root, *([options.out] if options.out else [])]))
    rendering = render_limited(project, options.profile, settings, options.out)
    _print_adjustments(rendering)
    changed = drifts.difference(project, rendering)
    if not changed:
        click.echo("nothing changes", err=True)
        return
    found = list(meanings(project, rendering))
    if whole:
        for meaning in found:
            click.echo(f"{meaning}\n")
        click.echo("".join(drift.diff for drift in changed), nl=False)
    else:
        for line in summary(rendering, changed, found):
            click.echo(line)


def write_files(options: RenderOptions) -> None:
    """Render and write every file, and report what changed."""
    project = working_folder.project()
    rendering = render(project, options.profile, options.settings(), options.out)
    for line in write(project, rendering).lines():
        click.echo(line, err=True)
    _print_adjustments(rendering)


def _print_adjustments(rendering: Rendering) -> None:
    for line in rendering.profile.adjustments:
        click.echo(line, err=True)
