"""The project that the working directory belongs to, where its runs are kept, and what stays out of uploads.

Azure ML would upload `.trainyard/`, with all runs so far, with a job's code; a local run leaves it out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from trainyard import project_files
from trainyard.printing import plain_text
from trainyard.project_files import OutsideRoot, root_of, write_text
from trainyard.rehearse.errors import writing
from trainyard.render.project import NoProject, Project, find_project
from trainyard.settings.quantities import counted, memory
from trainyard.spec.model import Component, Job, PipelineComponent
from trainyard.spec.uploads import ignore_file, ignore_rule
from trainyard.terminal import short

_LARGEST_SHOWN = 3


def project() -> Project:
    """Return the project of the working directory; raise NoProject outside one."""
    return find_project(Path.cwd())


def private_folder(run_folder: Path | None = None) -> Path:
    """Return the folder of everything that Trainyard keeps: in the project, or in the working directory outside one.

    Where that cannot be written, a run that lies elsewhere has its own in `run_folder`.
    """
    try:
        root = project().root
    except NoProject:
        root = Path.cwd()
    folder = root / ".trainyard"
    if run_folder is None or os.access(folder if folder.exists() else root, os.W_OK | os.X_OK):
        return folder
    return run_folder.absolute() / ".trainyard"


def runs_folder(run_folder: Path | None = None) -> Path:
    """Return the folder of all runs."""
    return private_folder(run_folder) / "runs"


def keep_out_of_git(run_folder: Path | None = None) -> Path:
    """Make the private folder, and have it ignore itself: git takes nothing of it, whatever the repository ignores."""
    folder = private_folder(run_folder)
    with writing(folder):
        if run_folder is not None and folder.is_relative_to(run_folder.absolute()):
            run_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        project_files.keep_out_of_git(folder)
    return folder


def template_of(file: Path) -> Path | None:
    """Return the template that a file is rendered from, as users would type it; None outside a project or without."""
    try:
        here = project()
        template = here.templates / f"{file.absolute().relative_to(here.root)}.j2"
    except (NoProject, ValueError):
        return None
    return Path(here.shown(template)) if template.is_file() else None


def keep_runs_out_of_snapshots(pipeline: PipelineComponent, run_folder: Path | None = None) -> None:
    """Leave `.trainyard/` out of every code folder that contains it, for Azure ML's client as well, and say so.

    A folder without an ignore file gets an `.amlignore`. One that exists is the user's, and stays as it is: an
    `.amlignore` beside a `.gitignore` would put that out of force. The user is told what to add.
    """
    private = private_folder(run_folder).resolve()
    for code, job in {code: job.name for job, code in code_folders(pipeline)}.items():
        if not private.is_relative_to(code):
            continue
        inside = private.relative_to(code).as_posix()
        is_ignored, _ = ignore_rule(code)
        if is_ignored(f"{inside}/runs/run.json"):
            continue
        upload = f"Azure ML would upload {short(private)} with the code of {job}"
        existing, new = ignore_file(code), code / ".amlignore"
        if existing is not None:
            click.echo(f"warning: {upload}; add {inside}/ to {short(existing)}", err=True)
            continue
        text = f"# Runs on this machine do not belong to a job's code.\n/{inside}/\n"
        try:
            write_text(new, text, root_of([private]))
        except OutsideRoot as error:
            click.echo(f"warning: {upload}: {error}", err=True)
        else:
            click.echo(f"wrote {short(new)}: {upload}", err=True)


def list_snapshots(pipeline: PipelineComponent) -> None:
    """Print how much would be uploaded with the code of jobs, and its largest files."""
    from trainyard.rehearse.snapshots import snapshot_of

    listed = set()
    for job, code in code_folders(pipeline):
        assert isinstance(job.component, Component)
        uploaded = code, *job.component.additional_includes
        if uploaded in listed:
            continue
        listed.add(uploaded)
        sizes = {place: file.stat().st_size for file, place in snapshot_of(job.component).files}
        largest = sorted(sizes, key=lambda place: -sizes[place])[:_LARGEST_SHOWN]
        shown = ", ".join(f"{place} ({memory(sizes[place])})" for place in largest)
        total = f"{memory(sum(sizes.values()))} in {counted(len(sizes), 'file')}"
        click.echo(plain_text(f"the code of {job.name}: {total}; largest: {shown or 'none'}"), err=True)


def code_folders(pipeline: PipelineComponent) -> Iterator[tuple[Job, Path]]:
    """Yield each job with code, nested ones included, and its folder."""
    for job in pipeline.jobs.values():
        if isinstance(job.component, PipelineComponent):
            yield from code_folders(job.component)
        elif isinstance(job.component, Component) and job.component.code is not None:
            yield job, job.component.code.resolve()
