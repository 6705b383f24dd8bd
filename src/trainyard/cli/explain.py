"""`trainyard explain`: one rule in full, those that find something in a file, or all."""

from __future__ import annotations

from pathlib import Path

import click

from trainyard.cli.parameters import chosen_file
from trainyard.lint.explanation import as_list, as_text, find_rule
from trainyard.lint.rules import RULES
from trainyard.project_findings import rules_that_find_something
from trainyard.render.rules import RULES as RULES_OF_RENDERING

_RULES = {**RULES, **RULES_OF_RENDERING}


@click.command()
@click.argument("subject", metavar="[RULE | FILE]", required=False)
def explain(subject: str | None) -> None:
    """Explain a rule: what it means, what Azure ML does, and how to fix it; without one, list all rules.

    RULE is an id or a name. With a FILE: the rules that find something in it.

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
        click.echo(_explanation_of_file(chosen_file(subject, None)))
    else:
        click.echo(as_text(find_rule(subject, _RULES)))


def _explanation_of_file(file: Path) -> str:
    explained = [as_text(_RULES[id]) for id in rules_that_find_something(file)]
    return f"\n\n{'-' * 80}\n\n".join(explained) or f"no findings in {file}"
