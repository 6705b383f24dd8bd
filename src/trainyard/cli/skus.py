"""`trainyard skus`: Azure's machines for training."""

from __future__ import annotations

import click

from trainyard.catalogue import tables
from trainyard.catalogue.skus import all_skus, find_sku
from trainyard.cli.parameters import OneOf


@click.command()
@click.argument("name", required=False)
@click.option("--format", "output_format", type=OneOf(("text", "json")), default="text", show_default=True)
def skus(name: str | None, output_format: str) -> None:
    """List Azure's machines for training; with NAME, show one in full, with sources.

    \b
    Examples:
      trainyard skus
      trainyard skus Standard_ND96asr_v4
    """
    if output_format == "json":
        click.echo(tables.as_json([find_sku(name)] if name else all_skus()))
    elif name:
        click.echo(tables.one_in_full(find_sku(name)))
    else:
        click.echo(tables.overview(all_skus()))
