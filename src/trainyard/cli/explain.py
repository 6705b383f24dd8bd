"""`trainyard explain`: one rule in full, those that find something in a file, or all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from trainyard.cli.parameters import chosen_file
from trainyard.lint.explanation import as_list, as_text, find_rule
from trainyard.lint.rules import RULES
from trainyard.printing import table
from trainyard.project_findings import rules_that_find_something
from trainyard.render.rules import RULES as RULES_OF_RENDERING
from trainyard.settings.quantities import as_text as as_written
from trainyard.spec.diagnostic import SpecError
from trainyard.spec.loading import load_job
from trainyard.spec.resolution import Resolution
from trainyard.spec.resolved import Known
from trainyard.terminal import short

_RULES = {**RULES, **RULES_OF_RENDERING}


@click.command()
@click.argument("subject", metavar="[RULE | FILE]", required=False)
def explain(subject: str | None) -> None:
    """Explain a rule: what it means, what Azure ML does, and how to fix it; without one, list all rules.

    RULE is an id or a name. With a FILE: the rules that find something in it, and
    the settings of its trainings, with the line of each.

    \b
    Examples:
      trainyard explain                      all rules, a line each
      trainyard explain AML206
      trainyard explain unknown-command-port
      trainyard explain pipelines/ddp.yaml
    """
    if subject is None:
        click.echo(as_list(_RULES.values()))
    elif subject.endswith((".yaml", ".yml")) or Path(subject).is_file():
        file = chosen_file(subject, None)
        explained = [as_text(_RULES[id]) for id in rules_that_find_something(file)] or [f"no findings in {file}"]
        click.echo(f"\n\n{'-' * 80}\n\n".join([*explained, *_settings_of_trainings(file)]))
    else:
        click.echo(as_text(find_rule(subject, _RULES)))


def _settings_of_trainings(file: Path) -> Iterator[str]:
    """Yield, for each training of a job's file, the settings that it is given, each with where it is written.

    There are none for a file that cannot be read as a job: its errors are explained.
    """
    try:
        jobs = Resolution(load_job(file, on_azure=True)).jobs
    except SpecError:
        return
    for name, use in jobs.items():
        settings = use.step_settings
        if settings is None or not settings.has_settings_file:
            continue
        rows = []
        for key, value in settings.values.items():
            is_literal = isinstance(value, Known) and isinstance(value.value, (str, int, float))
            if isinstance(value, Known) and is_literal and settings.origin(key) != "default":
                place = value.written.span
                rows.append((key, f"{short(place.file)}:{place.line}", as_written(value.value)))
        yield "\n".join([f"settings that the job {name} is given:", *table(rows, indent=2)])
