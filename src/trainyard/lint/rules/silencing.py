"""Findings that are silenced: what goes stale in ignore comments (`lint/ignores.py`) and in baselines."""

from __future__ import annotations

from trainyard.spec.rule import Example, Rule

UNUSED_IGNORE = Rule(
    "AML801",
    "unused-ignore",
    "warning",
    "A comment ignores a rule that finds nothing there.",
    "What was ignored is mended, or stands elsewhere. Left in place, the comment would hide the next such mistake.",
    Example("""\
type: command
name: train
command: python train.py‹  # trainyard: ignore[‸AML206] set by the scheduler⇒›
environment: azureml:torch:3
"""),
)
BAD_IGNORE = Rule(
    "AML802",
    "bad-ignore",
    "warning",
    "A comment that speaks to Trainyard is not understood, and does nothing.",
    "`# trainyard: ignore[AML206] reason` stands at the end of a line or on a line above it, `ignore-file[AML206]` "
    "anywhere in the file. Several rules are written `ignore[AML206, AML304]`.",
    Example("""\
type: command
name: train
command: python train.py
‹# trainyard: ‸ignore everything⇒# The newest is wanted.›
environment: azureml:torch:3
"""),
)
STALE_BASELINE = Rule(
    "AML803",
    "stale-baseline",
    "warning",
    "The baseline knows of a finding that is no longer there.",
    "It was mended: `trainyard lint --write-baseline` takes it out, so that it cannot come back unseen.",
)

RULES = (UNUSED_IGNORE, BAD_IGNORE, STALE_BASELINE)
