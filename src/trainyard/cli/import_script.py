"""`trainyard import`: a script of Azure ML's Python SDK to YAML, which the client's own `dump` writes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from trainyard.cli.init import write_new
from trainyard.cli.parameters import PathOf
from trainyard.errors import UsageError, UserError
from trainyard.project_files import read_text
from trainyard.terminal import print_next, print_notes, program, short

_OF_SDK_V1 = re.compile(r"^[ \t]*(?:from|import)[ \t]+(azureml\.(?:core|pipeline|train))\b", re.MULTILINE)


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
    text = read_text(script, errors="replace")
    if "azure.ai.ml" not in text:
        v1 = _OF_SDK_V1.search(text)
        used = f"uses SDK v1 ({v1[1]}): docs/coming-from/sdk_v1.md has its classes as YAML" if v1 else "does not use it"
        raise UserError(f"{script} was not run: import reads scripts of SDK v2 (azure.ai.ml), and this one {used}")
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"{script} was not run: an import runs its code, which --yes agrees to")
    if yes or click.confirm(f"run {short(script)}, with a client that only records?", err=True):
        contents = _imported_files(script, arguments, output)
        write_new(output, contents, force=force, way_out="choose another --output, or replace them with --force")
        written = [short(output / path) for path in contents]
        print_notes(f"wrote {path}" for path in written)
        print_next((f"{program()} lint {short(output)}", ""), (f"{program()} run {written[0]}", ""))


def _imported_files(script: Path, arguments: Sequence[str], output: Path) -> dict[str, str]:
    """Run a script, and return files by their paths below `output`, jobs first. Nothing is submitted.

    Raise UserError where the script fails or submits nothing.
    """
    command = [sys.executable, "-m", "trainyard.azure.recorder", str(script), *arguments]
    recorded = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout
    recording = json.loads(recorded) if recorded else {"error": f"{script} ended its process"}
    if recording["error"]:
        raise UserError(recording["error"])
    contents: dict[str, str] = {}
    for group, name, text in sorted(recording["files"], key=lambda file: file[0] != "jobs"):
        stem = re.sub(r"[^\w.-]+", "-", name).strip(".-") or script.stem
        path = Path("" if group == "jobs" else group, f"{stem}.yaml")
        while str(path) in contents:
            path = path.with_stem(f"{path.stem}_2")
        data = _tidied(yaml.safe_load(text), (output / path).parent)
        contents[str(path)] = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
    if not contents:
        raise UserError(f"{script} submits nothing; expected a call such as ml_client.jobs.create_or_update(job)")
    return contents


def _tidied(value: Any, folder: Path, key: str = "") -> Any:
    """Return data with local paths relative to a folder, without the empty mappings that the client adds."""
    if isinstance(value, dict):
        return {key: _tidied(each, folder, key) for key, each in value.items() if each != {}}
    if isinstance(value, list):
        return [_tidied(each, folder) for each in value]
    return _relative(value, folder) if key in ("code", "path") else value


def _relative(path: str, folder: Path) -> str:
    """Return a local path relative to a folder, and others as they are. The client writes `azureml:` before inputs'."""
    local = path.removeprefix("azureml:")
    is_asset = path != local and "/" not in local and not Path(local).exists()
    is_elsewhere = is_asset or "://" in path or local.startswith(("/subscriptions/", "${{"))
    return path if is_elsewhere else os.path.relpath(local, folder)
