"""`trainyard explain`: one rule in full, those that find something in a file, or the list of all."""

from __future__ import annotations

from pathlib import Path

from trainyard.author.rule_ids import MEANINGS
from trainyard.lint.explanation import as_list, as_text, find_rule
from trainyard.lint.rules import RULES


def explanation_of(subject: str | None) -> str:
    """What to print for a rule's id or name, for a file, or for None: the list. Raises UsageError for anything else."""
    if subject is None:
        return as_list(RULES.values(), MEANINGS)
    if subject.strip().upper() in MEANINGS:
        return _of_profiles_and_templates(subject.strip().upper())
    if Path(subject).is_file():
        return _rules_of_file(Path(subject))
    return as_text(find_rule(subject))


def _of_profiles_and_templates(rule: str) -> str:
    return f"{rule} (error)\n\n{MEANINGS[rule]}\n\nNothing is rendered while it stands, so it cannot be ignored."


def _rules_of_file(file: Path) -> str:
    from trainyard.commands.lint import rules_that_find_something

    found = rules_that_find_something(file)
    explained = [_of_profiles_and_templates(id) if id in MEANINGS else as_text(find_rule(id)) for id in found]
    return f"\n\n{'-' * 80}\n\n".join(explained) or f"no rule finds anything in {file}"
