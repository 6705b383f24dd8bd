"""What Azure ML would upload with a job's code, and a local run leaves out: `.trainyard/`, with all runs so far."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from trainyard.cli import working_folder
from trainyard.printing import plain_text
from trainyard.project_files import OutsideRoot, root_of, write_text
from trainyard.spec.model import Component, PipelineComponent
from trainyard.spec.uploads import doubtful_uploads, ignore_file, ignore_rule
from trainyard.terminal import short


def keep_runs_out_of_snapshots(pipeline: PipelineComponent) -> None:
    """Leave `.trainyard/` out of every code folder that contains it, for Azure ML's client as well, and say so.

    A folder without an ignore file gets an `.amlignore`. One that exists is the user's, and stays as it is: an
    `.amlignore` beside a `.gitignore` would put that out of force. The user is told what to add.
    """
    private = working_folder.private_folder().resolve()
    for code, job in {code: job for job, code in _code_folders(pipeline)}.items():
        if not private.is_relative_to(code):
            continue
        inside = private.relative_to(code).as_posix()
        is_ignored, _ = ignore_rule(code)
        if is_ignored(f"{inside}/runs/run.json"):
            continue
        existing = ignore_file(code)
        if existing is not None:
            message = (
                f"Azure ML would upload {short(private)} with the code of {job}; add {inside}/ to {short(existing)}"
            )
            click.echo(f"warning: {message}", err=True)
            continue
        new = code / ".amlignore"
        text = f"# Runs on this machine do not belong to a job's code.\n/{inside}/\n"
        try:
            write_text(new, text, root_of([private]))
        except OutsideRoot as error:
            click.echo(f"warning: Azure ML would upload {short(private)} with the code of {job}: {error}", err=True)
            continue
        click.echo(f"wrote {short(new)}: Azure ML would upload {short(private)} with the code of {job}", err=True)


def list_doubtful_uploads(pipeline: PipelineComponent) -> None:
    """Print what would be uploaded with the code of jobs and should hardly be, before it is."""
    for code, job in {code: job for job, code in _code_folders(pipeline)}.items():
        for place, reason in doubtful_uploads(code):
            click.echo(plain_text(f"warning: the code of {job} uploads {short(code / place)} ({reason})"), err=True)


def _code_folders(pipeline: PipelineComponent) -> Iterator[tuple[str, Path]]:
    """Yield each job with code, nested ones included, and its folder."""
    for name, job in pipeline.jobs.items():
        if isinstance(job.component, PipelineComponent):
            yield from _code_folders(job.component)
        elif isinstance(job.component, Component) and job.component.code is not None:
            yield name, job.component.code.resolve()
