"""`trainyard skus`: Azure's machines for training."""

from __future__ import annotations

from collections.abc import Sequence

import click

from trainyard.catalogue import tables
from trainyard.catalogue.skus import Sku, UnknownSku, all_skus, family, find_sku
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
    chosen = _named(name) if name else all_skus()
    if output_format == "json":
        click.echo(tables.as_json(chosen))
    elif name and len(chosen) == 1:
        click.echo(tables.one_in_full(chosen[0]))
    else:
        click.echo(tables.overview(chosen))


def _named(name: str) -> Sequence[Sku]:
    """Return the machine with this name, or else those whose names begin like this. UnknownSku without any."""
    try:
        return [find_sku(name)]
    except UnknownSku:
        if found := family(name):
            return found
        raise
