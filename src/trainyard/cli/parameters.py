"""What several verbs share: the order of verbs in help, FILE, and values whose errors say what was expected."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, ClassVar

import click

from trainyard.project_files import text_or_empty
from trainyard.settings.regex import regex


class VerbGroup(click.Group):
    """A group whose help has its own order; without a verb it prints its help and exits with 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order they were added, rather than alphabetically."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what comes before the verb."""
        if not args:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that is named; for an unknown one the error names the closest."""
        from trainyard.settings.suggestions import did_you_mean

        name = args[0]
        # Options are left to click, which knows the known ones.
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            ctx.fail(f"unknown command {name!r}. {did_you_mean(name, known)}")
        return super().resolve_command(ctx, args)


class AtLeast(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on only
    """A number with a minimum, whole if the minimum is an int."""

    name = "number"

    def __init__(self, minimum: int | float) -> None:
        self._minimum = minimum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        """Return the number; fail with what was expected and the value."""
        kind = type(self._minimum)
        try:
            number = kind(value)
        except ValueError:
            number = None
        if number is None or not number >= self._minimum:
            noun = "a whole number" if kind is int else "a number"
            self.fail(f"expected {noun} of at least {self._minimum:g}, got {value!r}", param, ctx)
        return number


class Amount(click.ParamType):  # type: ignore[type-arg]
    """A number above 0 that may end in K, M, B or T: 300B is 3e11."""

    name = "amount"
    _FACTORS: ClassVar = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail with what was expected and the value."""
        text = str(value).upper() or "?"
        try:
            number = float(text.removesuffix(text[-1]) if text[-1] in self._FACTORS else text)
            number *= self._FACTORS.get(text[-1], 1.0)
        except ValueError:
            number = 0.0
        if not 0 < number < math.inf:
            self.fail(f"expected an amount such as 300B, 2T or 5000000, got {value!r}", param, ctx)
        return number


class OneOf(click.Choice):  # type: ignore[type-arg]
    """One of some words; an error names the closest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word, whatever its case; fail with the words that there are and the value."""
        from trainyard.settings.suggestions import close_match

        value = next((word for word in self.choices if word.lower() == str(value).lower()), value)
        if value not in self.choices:
            hint = close_match(str(value), self.choices)
            self.fail(
                f"expected one of {', '.join(self.choices)}, got {value!r}{f'. {hint}' if hint else ''}", param, ctx
            )
        return str(value)


class PathOf(click.ParamType):  # type: ignore[type-arg]
    """A path that need not exist, but is a folder, or a file, if it does."""

    name = "path"

    def __init__(self, kind: str) -> None:
        assert kind in ("file", "folder")
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path; fail where something of the other kind has its name."""
        path = Path(value)
        is_there, is_right = path.exists(), path.is_dir() if self._kind == "folder" else path.is_file()
        if is_there and not is_right:
            other = "file" if self._kind == "folder" else "folder"
            self.fail(f"{path} is a {other}; expected a {self._kind}", param, ctx)
        return path


def file_argument(function: Any) -> Any:
    """Add FILE as an argument, or as `-f FILE` the way `az ml` takes it; `chosen_file` reads both."""
    option = click.option("-f", "--file", "file_option", metavar="FILE", help="FILE, given as `az ml` takes it.")
    return click.argument("file", required=False, metavar="FILE")(option(function))


def chosen_file(file: str | None, file_option: str | None, profile: str | None = None) -> Path:
    """Return the one file given as FILE or as `-f FILE`; with a profile, a file that has a template need not exist.

    Raise click.UsageError when there is none, when there are two, and when it is not a file.
    """
    from trainyard.cli.working_folder import template_of

    if file and file_option:
        raise click.UsageError(f"FILE is given twice: {file} and -f {file_option}; give one")
    chosen = file or file_option
    if not chosen:
        raise click.UsageError(f"missing FILE, such as {_example_in(Path('pipelines'), Path()) or 'pipeline.yml'}")
    if "://" in chosen:
        raise click.UsageError(f"{chosen} is an address; expected a file on this machine")
    path = Path(chosen)
    if path.is_file():
        return path
    template = template_of(path)
    if template is None:
        raise click.UsageError(_no_such_file(path))
    if profile is None:
        raise click.UsageError(f"{path}: no such file yet; `trainyard render` writes it from {template}")
    return path


_FIRST = ("ddp", "train")


def _no_such_file(path: Path) -> str:
    from trainyard.settings.suggestions import close_match

    if path.is_dir():
        example = _example_in(path)
        return f"{path} is a folder; expected a file{f', such as {example}' if example else ''}"
    # `ddp` and `pipeline/ddp.yml` mean pipelines/ddp.yaml.
    known = [file for folder in (path.parent, Path("pipelines"), Path()) for file in _yaml_files(folder)]
    same_stem = next((str(file) for file in known if file.stem == path.stem), "")
    hint = f"Did you mean '{same_stem}'?" if same_stem else close_match(str(path), [str(file) for file in known])
    return f"{path}: no such file. {hint}".rstrip(" .")


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(file for pattern in ("*.yaml", "*.yml") for file in folder.glob(pattern) if file.is_file())


_JOB = regex(r"^type:\s*pipeline\s*$|/(pipeline|command|sweep)Job\.schema\.json", re.MULTILINE)


def _example_in(*folders: Path) -> Path | None:
    # What README and new projects begin with, or the longest: a pipeline that trains rather than one that checks.
    def likely(file: Path) -> tuple[bool, bool, int]:
        return "pipeline" in file.stem, file.stem in _FIRST, file.stat().st_size

    jobs = [file for folder in folders for file in _yaml_files(folder) if _JOB.search(text_or_empty(file))]
    return max(jobs, key=likely, default=None)
