"""What only a run on this machine minds: no mistakes in the YAML."""

from __future__ import annotations

from trainyard.lint.rule import Rule
from trainyard.spec import rule_ids

RULES = (
    Rule(
        rule_ids.NOT_SEEN_OFFLINE,
        "not-seen-offline",
        None,
        "Kept in Azure ML, so that it cannot be seen from here.",
        "`trainyard lint` says nothing of it; `trainyard run` needs a local file.",
    ),
    Rule(
        rule_ids.NOT_RUN_LOCALLY,
        "not-run-locally",
        None,
        "A kind of job that a local run does not take.",
        "`trainyard run` takes jobs of type command.",
    ),
)
