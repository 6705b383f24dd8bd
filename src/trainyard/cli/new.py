"""`trainyard new`: write a new component or pipeline, and say what to do next."""

from __future__ import annotations

from collections.abc import Mapping

import click

from trainyard.cli import working_folder
from trainyard.cli.init import write_new
from trainyard.cli.parameters import VerbGroup
from trainyard.render import scaffolding
from trainyard.render.project import Project
from trainyard.render.rendering import render
from trainyard.render.writing import write
from trainyard.terminal import print_next, print_notes, program, short


@click.group(cls=VerbGroup)
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
    project = working_folder.project()
    _add(project, scaffolding.new_component(project, name))
    package = scaffolding.own_package(project)
    print_next(
        (f"src/{package}/{name}.py", "its settings and its work; then `trainyard render`"),
        (f"{program()} new pipeline {name}", "a pipeline that runs it"),
    )


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
    project = working_folder.project()
    _add(project, scaffolding.new_pipeline(project, name, component))
    print_next((f"{program()} run pipelines/{name}.yaml", "run it on this machine"))


def _add(project: Project, texts: Mapping[str, str]) -> None:
    write_new(project.root, texts, force=False)
    print_notes(f"wrote {short(project.root / path)}" for path in texts)
    print_notes(write(project, render(project)).lines())
