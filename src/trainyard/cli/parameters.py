"""What several verbs share: the order of verbs in help, and FILE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class VerbGroup(click.Group):
    """A group whose help has its own order."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order they were added, rather than alphabetically."""
        return list(self.commands)


def file_argument(function: Any) -> Any:
    """Add FILE as an argument, or as `-f FILE` the way `az ml` takes it; `chosen_file` reads both."""
    function = click.option("-f", "--file", "file_option", metavar="FILE", help="The same as FILE, as in `az ml`.")(
        function
    )
    return click.argument("file", required=False, metavar="FILE")(function)


def chosen_file(file: str | None, file_option: str | None) -> Path:
    """Return the one file given as FILE or as `-f FILE`.

    Raise click.UsageError when there is none, when there are two, and when it is not a file.
    """
    if file and file_option:
        raise click.UsageError(f"FILE is given twice: {file} and -f {file_option}.")
    chosen = file or file_option
    if not chosen:
        raise click.UsageError("missing FILE, such as pipelines/ddp.yaml.")
    path = Path(chosen)
    if not path.is_file():
        raise click.UsageError(_no_such_file(path))
    return path


def _no_such_file(path: Path) -> str:
    from trainyard.foundation.suggestions import close_match

    if path.is_dir():
        return f"{path} is a folder; expected a pipeline file, such as {path / 'ddp.yaml'}."
    neighbours = [str(other) for other in path.parent.glob("*.yaml")] if path.parent.is_dir() else []
    return f"{path}: no such file. {close_match(str(path), neighbours)}".rstrip()
