"""A file as another profile renders it, beside the project's own files, which stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from trainyard.cli import working_folder
from trainyard.errors import UsageError
from trainyard.terminal import print_notes, short


def rendered_aside(file: Path, profile: str, settings: Mapping[str, str], run_folder: Path | None = None) -> Path:
    """Render a profile, with settings laid over it, into `.trainyard/rendered/`; return what `file` is there.

    Of a project that cannot be written, that is in `run_folder`.
    A file that was edited by hand is noted on stderr, as is what was adjusted for the profile. Raise UsageError for a
    file without a template, and for unknown profiles and settings.
    """
    from trainyard.render.rendered_files import edited_by_hand, read_rendered
    from trainyard.render.rendering import render  # which takes 0.1 s to import
    from trainyard.render.settings import read_settings
    from trainyard.render.writing import write

    project = working_folder.project()
    out = working_folder.keep_out_of_git(run_folder) / "rendered" / profile
    try:
        rendering = render(project, profile, read_settings(f"{key}={value}" for key, value in settings.items()), out)
    except UsageError as error:
        unknown = next((key for key in settings if "." not in key and f"unknown key '{key}'" in str(error)), None)
        if unknown is None:
            raise
        keys = f"by --set inputs.{unknown}=VALUE, and one of its job J by --set jobs.J.inputs.{unknown}=VALUE"
        raise UsageError(f"{error} An input of the pipeline is set {keys}.") from None
    write(project, rendering)
    print_notes(line for line in rendering.profile.adjustments if line.startswith(f"{file.stem}:"))
    resolved = file.resolve()
    if not resolved.is_relative_to(project.root):
        raise UsageError(f"--profile renders the files of {project.root}; {file} is outside it.")
    rendered = out / resolved.relative_to(project.root)
    if not rendered.is_file():
        raise UsageError(f"--profile: {file} is not rendered from a template; leave --profile out.")
    on_disk = read_rendered(resolved)
    if on_disk is not None and edited_by_hand(project, project.root, [on_disk], unless_unknown=True):
        note = f"note: {file} was edited by hand; --profile renders it again without those edits."
        click.echo(f"{note} Without --profile it is taken as it is.", err=True)
    return short(rendered)
