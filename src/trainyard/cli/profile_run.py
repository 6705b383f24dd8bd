"""What `--profile` runs: a project rendered for the profile into a private folder, whatever its files hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import click

from trainyard.cli import working_folder
from trainyard.errors import UsageError
from trainyard.render.hand_edits import edited_by_hand
from trainyard.render.rendered_files import read_rendered
from trainyard.render.rendering import render
from trainyard.render.writing import write
from trainyard.terminal import short


def render_aside(file: Path, profile: str, settings: Mapping[str, object] = MappingProxyType({})) -> Path:
    """Render a profile into `.trainyard/rendered/` and return the file there that corresponds to `file`.

    `settings` (`nodes`) are laid over the profile; what follows from them for the batches is printed.
    """
    project = working_folder.project()
    out = project.root / ".trainyard" / "rendered" / profile
    rendering = render(project, profile, settings, out)
    write(project, rendering)
    for line in rendering.profile.adjustments:
        if line.startswith(f"{file.stem}:"):
            click.echo(line, err=True)
    try:
        relative = file.resolve().relative_to(project.root)
    except ValueError:
        raise UsageError(f"--profile renders the files of {project.root}; {file} is outside it.") from None
    if not (out / relative).is_file():
        raise UsageError(f"--profile: {file} is not rendered from a template; run it without --profile.")
    on_disk = read_rendered(project.root / relative)
    if on_disk is not None and edited_by_hand(project, project.root, [on_disk]):
        note = f"note: {file} was edited by hand; --profile renders it again without those edits."
        click.echo(f"{note} Without --profile it runs as it is.", err=True)
    return short(out / relative)
