"""Verbs that start something: init, new."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.parameters import OneOf, PathOf, VerbGroup

_RECIPES = ("ddp", "fsdp", "deepspeed", "blank")


@click.command(short_help="A new project, ready to run.")
@click.argument("folder", required=False, default=".", metavar="[DIR]", type=PathOf("folder"))
@click.option("--from", "recipe", type=OneOf(_RECIPES), default="ddp", show_default=True, help="What it trains.")
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
    from trainyard.commands import scaffolding

    if existing:
        scaffolding.adopt(folder)
    else:
        scaffolding.create(folder, recipe, force=force)


@click.group(cls=VerbGroup, short_help="Another component or pipeline.")
def new() -> None:
    """Add a component or a pipeline to the project.

    \b
    Examples:
      trainyard new component clean
      trainyard new pipeline clean
    """


@new.command("component")
@click.argument("name")
def new_component(name: str) -> None:
    """Add a step with settings of its own, and the template of its component.

    \b
    Example:
      trainyard new component clean_text
    """
    from trainyard.commands.scaffolding import add_component

    add_component(name)


@new.command("pipeline")
@click.argument("name")
@click.option("--component", metavar="NAME", help="What it runs; by default your own component of that name.")
def new_pipeline(name: str, component: str | None) -> None:
    """Add the template of a pipeline with one job, to which you add others.

    \b
    Examples:
      trainyard new pipeline clean_text
      trainyard new pipeline score --component evaluate
    """
    from trainyard.commands.scaffolding import add_pipeline

    add_pipeline(name, component)
