"""`trainyard init`: write a new project, and say what to do next."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from trainyard.cli.lint import keep_in_baseline
from trainyard.cli.parameters import OneOf, PathOf
from trainyard.errors import UserError
from trainyard.lint.config import SEVERITIES
from trainyard.project_files import limit_reading, root_of
from trainyard.project_findings import check_paths, project_of
from trainyard.render import scaffolding
from trainyard.render.installed_from import InstalledFrom, installed_from
from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.scaffolding import RECIPES
from trainyard.render.writing import replace_atomically, write
from trainyard.settings.quantities import counted, first_names
from trainyard.spec.computes import Computes
from trainyard.spec.diagnostic import Diagnostic
from trainyard.spec.findings import DocumentStore
from trainyard.terminal import print_diagnostics, print_next, print_notes, program, short

_FIRST_PROFILE = "local"
_MOST_LISTED = 3
_MOST_SHOWN = 5


@click.command()
@click.argument("folder", required=False, default=".", metavar="[DIR]", type=PathOf("folder"))
@click.option("--from", "recipe", type=OneOf(RECIPES), default="ddp", show_default=True, help="What it trains.")
@click.option("--existing", is_flag=True, help="Only lint: its settings, a baseline, CI, pre-commit, the editor.")
@click.option("--force", is_flag=True, help="Replace files that are in the way.")
def init(folder: Path, recipe: str, existing: bool, force: bool) -> None:
    """Write a small project that runs: your own task with a test, profiles, templates, rendered YAML, CI, editor.

    \b
    Examples:
      trainyard init my-project                images: data-parallel training of a task of your own
      trainyard init my-model --from fsdp      text: a language model, fully sharded
      trainyard init --existing                in a repository that has Azure ML YAML already: lint, and no more
    """
    if existing:
        _adopt(folder)
    else:
        _create(folder, recipe, force=force)


def _create(folder: Path, recipe: str, *, force: bool) -> None:
    """Write a new project into a folder and render it. Raise UserError, writing nothing, where files are in the way."""
    root = folder.resolve()
    source = installed_from()
    texts = scaffolding.new_project(root.name, recipe, source)
    contents: dict[str, str | bytes] = {**texts, **scaffolding.copies_of_project(recipe, source)}
    write_new(root, contents, force=force, way_out="choose another folder, or replace them with --force")
    project = Project(root)
    report = write(project, render(project, _FIRST_PROFILE))
    click.echo(f"wrote {short(root)}: {counted(len(contents) + len(report.written), 'file')}", err=True)
    _say_what_to_fill_in(source, root / "requirements.txt")
    steps = [] if root == Path.cwd() else [(f"cd {short(root)}", "")]
    if recipe != "blank":
        steps.append((f"{program()} run pipelines/train.yaml", "prepare, train and evaluate on this machine"))
    else:
        steps.append((f"{program()} new component NAME", "your first step, then `new pipeline NAME`"))
    print_next(*steps, ("README.md", "what is where, and how to submit it"))


def _adopt(folder: Path) -> None:
    """Add what lint needs to a repository that has Azure ML YAML: settings, baseline, CI, pre-commit, editor.

    Files that exist are kept as they are, and named. The most serious findings are shown before they are kept as known.
    Raise UserError in a project of Trainyard's, which has all of this already.
    """
    root = folder.resolve()
    if (project := project_of(root)) is not None:
        raise UserError(f"{short(project.root)} is a Trainyard project, which has all that --existing writes")
    os.chdir(root)
    limit_reading(root_of([root]))
    store = DocumentStore()
    settings, result = check_paths([root], store)
    clusters = Computes(store, settings.computes).unknown(result.files)
    source = installed_from()
    texts = scaffolding.existing_repository(root.name, source, clusters)
    contents: dict[str, str | bytes] = {**texts, **scaffolding.wheel_of(source)}
    kept = [path for path in contents if (root / path).exists()]
    write_new(root, {path: content for path, content in contents.items() if path not in kept}, force=False)
    print_notes(f"{'kept' if path in kept else 'wrote'} {short(root / path)}" for path in contents)
    baseline = root / "lint-baseline.json"
    if baseline.exists():
        click.echo(f"kept {short(baseline)}", err=True)
    else:
        _show_most_serious(result.diagnostics)
        keep_in_baseline(baseline, result.diagnostics, result.files)
    if clusters:
        named = f"note: no file says which VM size these clusters have: {', '.join(clusters)}"
        click.echo(f"{named}; say it in .trainyard.toml, [lint.computes], and `plan` has a price", err=True)
    _say_what_to_fill_in(source, root / ".github/workflows/azureml-lint.yml")
    print_next((f"{program()} lint", "what is new since the baseline"), (f"{program()} explain", "all rules"))


def _show_most_serious(found: Sequence[Diagnostic]) -> None:
    """Print the findings that most deserve to be fixed at once, one of each rule, before a baseline hides them."""
    by_rule = {each.rule: each for each in reversed(found)}
    first = sorted(by_rule.values(), key=lambda each: (SEVERITIES.index(each.severity), each.span))[:_MOST_SHOWN]
    if first:
        print_diagnostics(first)
        rest = f"the baseline keeps {counted(len(found), 'finding')}; `{program()} lint --no-baseline` shows all"
        click.echo(f"\nthe most serious, one of each rule: {rest}", err=True)


def _say_what_to_fill_in(source: InstalledFrom, file: Path) -> None:
    if source.problem:
        where = f"set in {short(file)} where other machines install Trainyard from"
        click.echo(f"note: {where}; it could not be found out here: {source.problem}", err=True)


def write_new(
    root: Path, contents: Mapping[str, str | bytes], *, force: bool, way_out: str = "choose another name"
) -> None:
    """Write files below a folder. Raise UserError, and write nothing, where one exists already."""
    in_the_way = [path for path in contents if (root / path).exists()]
    if in_the_way and not force:
        listed = first_names((str(short(root / path)) for path in in_the_way), _MOST_LISTED)
        would_be = f"{counted(len(in_the_way), 'file')} would be overwritten, so nothing was written"
        raise UserError(f"{would_be}: {listed}; {way_out}")
    for path, content in contents.items():
        replace_atomically(root / path, content.encode() if isinstance(content, str) else content, root)
