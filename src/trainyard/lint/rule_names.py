"""What is meant by something that should be a rule's id and is none."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.foundation.suggestions import close_match, slips
from trainyard.spec.rule import Rule

_MOST_LISTED = 3


def hint_for(written: str, rules: Mapping[str, Rule]) -> str:
    """The ids that are one slip away, or the id of the rule whose name was written; else where all are listed."""
    if written.startswith("TY") and written not in rules:
        return "What is wrong with a profile or template stops the rendering, so it cannot be silenced."
    upper = written.upper()
    near = sorted(rule for rule in rules if slips(upper, rule) <= 1 or rule == f"AML{written}")[:_MOST_LISTED]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    by_name = {rule.name: rule.id for rule in rules.values()}
    if written in by_name:
        return f"Its id is {by_name[written]}."
    # Any number is near to some other; only words are looked for among names.
    near_name = close_match(written, by_name) if not any(map(str.isdigit, written)) else ""
    return near_name or "`trainyard explain` lists them all."
