"""Verbs about machines, Azure's and this one: skus, doctor."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command(short_help="Azure's machines for training.")
@click.argument("name", required=False)
@click.option("--format", "output_format", type=click.Choice(("text", "json")), default="text", show_default=True)
def skus(name: str | None, output_format: str) -> None:
    """List Azure's machines for training; with NAME, show one in full, with sources.

    \b
    Examples:
      trainyard skus
      trainyard skus Standard_ND96asr_v4
    """
    from trainyard.catalogue import tables
    from trainyard.catalogue.skus import all_skus, find_sku

    if output_format == "json":
        click.echo(tables.as_json([find_sku(name)] if name else all_skus()))
    elif name:
        click.echo(tables.one_in_full(find_sku(name)))
    else:
        click.echo(tables.overview(all_skus()))


@click.command(short_help="Is this machine ready?")
def doctor() -> None:
    """Check this machine: Python, packages, disk, what a local run and a submission need. Exit 1 if not ready.

    \b
    Example:
      trainyard doctor
    """
    from trainyard.commands.doctor import examine, print_checks

    checks = examine(Path.cwd())
    print_checks(checks)
    if any(check.state == "missing" for check in checks):
        sys.exit(1)
