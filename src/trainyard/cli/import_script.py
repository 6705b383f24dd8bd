"""`trainyard import`: a script of Azure ML's Python SDK to YAML."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trainyard.azure.sdk_scripts import imported_files, require_sdk_v2
from trainyard.cli.init import write_new
from trainyard.cli.parameters import PathOf
from trainyard.errors import UsageError
from trainyard.terminal import print_next, program, short


@click.command("import")
@click.argument("script", type=PathOf("file"))
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]")
@click.option("--output", type=PathOf("folder"), default=".", metavar="DIR", help="Where to write.  [default: here]")
@click.option("--force", is_flag=True, help="Replace files that are in the way.")
@click.option("--yes", is_flag=True, help="Run the script without asking.")
def import_script(script: Path, arguments: tuple[str, ...], output: Path, force: bool, yes: bool) -> None:
    """Run SCRIPT, which uses Azure ML's Python SDK v2, and write what it submits as YAML. Nothing is submitted.

    The script's code runs on this machine, in a process of its own without network and other programs, where MLClient
    only records. Jobs go into DIR; components, environments, compute, data and models into folders there.

    \b
    Examples:
      trainyard import job.py
      trainyard import job.py --output azureml --yes
      trainyard import job.py -- --epochs 3       arguments of the script
    """
    require_sdk_v2(script)
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"{script} was not run: an import runs its code, which --yes agrees to")
    if yes or click.confirm(f"run {short(script)}, with a client that only records?", err=True):
        contents = imported_files(script, arguments, output)
        write_new(output, contents, force=force, way_out="choose another --output, or replace them with --force")
        written = [short(output / path) for path in contents]
        click.echo("".join(f"wrote {path}\n" for path in written), err=True, nl=False)
        print_next((f"{program()} lint {short(output)}", ""), (f"{program()} run {written[0]}", ""))
