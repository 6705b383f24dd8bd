"""`trainyard render`: write the rendered files, show what would change, or check for drift."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from trainyard.cli import working_folder
from trainyard.cli.parameters import PathOf
from trainyard.errors import UsageError
from trainyard.project_files import limit_reading, root_of
from trainyard.render import drift as drifts
from trainyard.render import rendering
from trainyard.render.limited_rendering import render_limited
from trainyard.render.project import Project
from trainyard.render.rendering import Rendering
from trainyard.render.settings import read_applied, read_settings
from trainyard.render.writing import write
from trainyard.settings.quantities import counted
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.secrets import redacted
from trainyard.terminal import print_error, print_notes, short


@click.command()
@click.argument("profile", required=False)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one value of the profile.")
@click.option("--apply", "applied", type=PathOf("file"), help="Change the profile's values that this YAML file holds.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and show the diff where files have drifted.")
@click.option("--diff", is_flag=True, help="Write nothing; show on one screen what this profile would change.")
@click.option("-v", "--verbose", is_flag=True, help="With --diff: all of it, with the lines that would change.")
@click.option("--out", type=PathOf("folder"), help="Write into another folder.")
@click.option("--adopt", "adopted", type=PathOf("file"), help="Copy the values edited in this rendered file back.")
@click.option("--release", "released", type=PathOf("file"), help="Stop rendering this file: it is yours, as it is.")
def render(
    profile: str | None,
    settings: tuple[str, ...],
    applied: Path | None,
    check: bool,
    diff: bool,
    verbose: bool,
    out: Path | None,
    adopted: Path | None,
    released: Path | None,
) -> None:
    """Render every template for PROFILE; without one, for the profile the files on disk were rendered for.

    Where --set changes the number of processes, each pipeline's global batch stays, or the learning rate follows it;
    what is changed for that is printed.

    \b
    Examples:
      trainyard render nd96                       components, pipelines, environments, compute for 8 x A100
      trainyard render nd96 --set nodes=4 --diff  what four nodes would change, without writing; all with -v
      trainyard render nd96 --apply profile.yaml  with the settings that pipelines/autotune.yaml found
      trainyard render --check                    in CI: have the rendered files drifted from their templates?
      trainyard render --adopt pipelines/ddp.yaml values edited there go into the profile or the template
    """
    if check and diff:
        raise click.UsageError("--check and --diff cannot be combined: --check takes the profile from the files.")
    if verbose and not diff:
        raise click.UsageError("-v goes with --diff")
    project = working_folder.project()
    if adopted is not None or released is not None:
        if profile or settings or applied or check or diff or out or (adopted and released):
            raise click.UsageError("--adopt FILE and --release FILE go with nothing else")
        _settle_edit(project, adopted, released)
        return
    given = {**(read_applied(applied) if applied is not None else {}), **read_settings(settings)}
    if not check and not diff:
        _write(project, profile, given, out)
        return
    limit_reading(root_of([project.root, *([out] if out else [])]))
    rendered = render_limited(project, profile, given, out)
    if diff:
        _show_difference(rendered, whole=verbose)
    elif _print_drift(rendered):
        sys.exit(1)


def _write(project: Project, profile: str | None, settings: Mapping[str, object], out: Path | None) -> None:
    rendered = rendering.render(project, profile, settings, out)
    print_notes([*write(project, rendered).lines(), *rendered.profile.adjustments])


def _settle_edit(project: Project, adopted: Path | None, released: Path | None) -> None:
    """Carry the edits of a rendered file back, or take the file out of rendering; then write what follows from it."""
    from trainyard.render import edits

    lines = edits.adopt(project, adopted) if adopted is not None else []
    lines += edits.release(project, released) if released is not None else []
    print_notes(lines)
    if adopted is not None:
        _write(project, None, {}, None)


def _print_drift(rendered: Rendering) -> bool:
    """Print the difference of every file that has drifted from its template or profile; return whether any has."""
    drifted = drifts.find_drift(rendered)
    for drift in drifted:
        click.echo(f"{short(drift.path)}: {drift.reason}", err=True)
        print_notes(f"  {redacted(line)}" for line in _lines_to_change(rendered.project, drift))
        click.echo(redacted(drift.diff), nl=False)
    if not drifted:
        click.echo("rendered files match their templates and profile", err=True)
        return False
    files = counted(len(drifted), "rendered file")
    print_error(f"{files} drifted: edit templates/ or profiles/, then run `trainyard render`")
    if any(drift.is_foreign and drift.kind == "changed" for drift in drifted):
        click.echo(
            "  or `trainyard render --adopt FILE` (edited values), `--release FILE` (it stays as it is)", err=True
        )
    return True


def _lines_to_change(project: Project, drift: drifts.Drift) -> list[str]:
    """The lines of profiles and templates that would make the edits of a file; none where that cannot be told."""
    if not drift.is_foreign or drift.kind != "changed":
        return []
    from trainyard.render import edits

    try:
        return list(edits.describe_edits(project, edits.edits_of(project, drift.path)))
    except (SpecError, UsageError):
        return []


def _show_difference(rendered: Rendering, *, whole: bool) -> None:
    """Print what writing a rendering would change on disk: on one screen, or the whole with every line."""
    from trainyard.cli.rendering_difference import meanings, summary  # an eighth of the time of a rendering without it

    print_notes(rendered.profile.adjustments)
    changed = drifts.difference(rendered)
    if not changed:
        click.echo("nothing changes", err=True)
        return
    found = list(meanings(rendered))
    if whole:
        for meaning in found:
            click.echo(f"{meaning}\n")
        click.echo(redacted("".join(drift.diff for drift in changed)), nl=False)
    else:
        for line in summary(rendered, changed, found):
            click.echo(line)
