"""The example of each rule: wrong, it is found by that rule alone, where it is marked; right, nothing is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.lint.config import LintSettings
from trainyard.lint.linter import lint
from trainyard.lint.rules import RULES
from trainyard.resources import PACKAGE
from trainyard.spec.rule import Rule

# What no short text can show; `test_linter.py` has a test of each.
WITHOUT_EXAMPLE = {"AML001", "AML003", "AML011", "AML013", "AML803", "AML901", "AML902"}
PEDANTIC = LintSettings(pedantic=True)
WITH_EXAMPLE = [rule for rule in RULES.values() if rule.example is not None]


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write files; the first of them is what is linted."""
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return folder / next(iter(files))


def test_every_rule_is_fully_described() -> None:
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    assert all(rule.summary.endswith(".") and rule.why.endswith((".", ".)")) for rule in RULES.values())
    assert {rule.id for rule in RULES.values() if rule.example is None} == WITHOUT_EXAMPLE


def test_every_example_belongs_to_a_rule() -> None:
    examples = PACKAGE / "spec" / "rule_examples"
    assert {file.name for file in examples.iterdir()} == {f"{rule.id}.txt" for rule in WITH_EXAMPLE}


@pytest.mark.parametrize("rule", WITH_EXAMPLE, ids=lambda rule: rule.id)
def test_the_wrong_example_is_found_where_it_is_marked(rule: Rule, tmp_path: Path) -> None:
    assert rule.example is not None
    found = lint([write(tmp_path, rule.example.wrong)], PEDANTIC).diagnostics
    name, line, column = rule.example.place
    assert [(d.rule, d.severity) for d in found] == [(rule.id, rule.severity)], found
    assert (found[0].span.file, found[0].span.line, found[0].span.column) == (tmp_path / name, line, column)


@pytest.mark.parametrize("rule", WITH_EXAMPLE, ids=lambda rule: rule.id)
def test_the_right_example_is_silent(rule: Rule, tmp_path: Path) -> None:
    assert rule.example is not None
    assert lint([write(tmp_path, rule.example.right)], PEDANTIC).diagnostics == ()
