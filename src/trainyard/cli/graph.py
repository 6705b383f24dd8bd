"""`trainyard graph`: a pipeline, drawn."""

from __future__ import annotations

import click

from trainyard.cli.parameters import OneOf, chosen_file, file_argument
from trainyard.plan import drawing
from trainyard.spec.loading import load_job


@click.command()
@file_argument
@click.option("--format", "output_format", type=OneOf(("text", "mermaid")), default="text", show_default=True)
def graph(file: str | None, file_option: str | None, output_format: str) -> None:
    """Draw a pipeline: its jobs and what flows between them, also of components that are kept in Azure ML.

    \b
    Example:
      trainyard graph pipelines/ddp.yaml --format mermaid
    """
    pipeline = load_job(chosen_file(file, file_option), strict=True, on_azure=True)
    click.echo(drawing.as_mermaid(pipeline) if output_format == "mermaid" else drawing.as_text(pipeline))
