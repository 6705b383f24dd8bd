"""`trainyard explain`: one rule in full, those that find something in a file, or all."""

from __future__ import annotations

from pathlib import Path

from trainyard.lint.explanation import as_list, as_text, find_rule
from trainyard.lint.rules import RULES
from trainyard.render import rules as author_rules

_ALL = {**RULES, **author_rules.RULES}


def explanation_of(subject: str | None) -> str:
    """Return what to print for a rule's id or name, for a file, or for None (the list). Raise UsageError otherwise."""
    if subject is None:
        return as_list(_ALL.values())
    if Path(subject).is_file():
        return _explanation_of_file(Path(subject))
    return as_text(find_rule(subject, _ALL))


def _explanation_of_file(file: Path) -> str:
    from trainyard.commands.lint import rules_that_find_something

    explained = [as_text(_ALL[id]) for id in rules_that_find_something(file)]
    return f"\n\n{'-' * 80}\n\n".join(explained) or f"no findings in {file}"
