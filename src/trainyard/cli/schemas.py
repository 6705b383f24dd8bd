"""`trainyard schemas`: the JSON Schemas of every kind of file."""

from __future__ import annotations

import click

from trainyard.errors import unknown_name
from trainyard.resources import schema_file, schema_names
from trainyard.terminal import short


@click.command()
@click.argument("name", required=False)
def schemas(name: str | None) -> None:
    """List the JSON Schemas of every kind of file; with NAME, print that schema.

    \b
    Examples:
      trainyard schemas
      trainyard schemas pipeline > pipeline.schema.json
    """
    known = schema_names()
    if name is None:
        for known_name in known:
            click.echo(f"{known_name:<24}{short(schema_file(known_name))}")
    elif name in known:
        click.echo(schema_file(name).read_text(encoding="utf-8"), nl=False)
    else:
        raise unknown_name("schema", name, known)
