"""`trainyard skus`: Azure's machines for training."""

from __future__ import annotations

import click

from trainyard.catalogue import tables
from trainyard.catalogue.skus import UnknownSku, all_skus, family, find_sku
from trainyard.cli.parameters import OneOf


@click.command()
@click.argument("name", required=False)
@click.option("--format", "output_format", type=OneOf(("text", "json")), default="text", show_default=True)
def skus(name: str | None, output_format: str) -> None:
    """List Azure's machines for training; with NAME, show one in full, with sources, or a family.

    \b
    Examples:
      trainyard skus
      trainyard skus Standard_ND96asr_v4
      trainyard skus ND96
    """
    chosen = all_skus()
    if name:
        try:
            chosen = (find_sku(name),)
        except UnknownSku:
            chosen = family(name)
            if not chosen:
                raise
    if output_format == "json":
        click.echo(tables.as_json(chosen))
    elif name and len(chosen) == 1:
        click.echo(tables.one_in_full(chosen[0]))
    else:
        click.echo(tables.overview(chosen))
