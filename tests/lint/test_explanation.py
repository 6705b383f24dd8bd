"""A rule explained, on the terminal and as a page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.errors import UsageError
from trainyard.lint.explanation import as_list, as_page, as_text, find_rule
from trainyard.lint.rules import RULES
from trainyard.render import rules as author_rules

GENERATOR = Path(__file__).parents[2] / "docs" / "generate_rules.py"


def test_a_rule_is_found_by_its_id_and_by_its_name() -> None:
    assert find_rule("aml206", RULES) is find_rule("unknown-command-port", RULES)


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("AML20", "Did you mean AML201 or AML202 or AML203?"),
        ("206", "Did you mean AML206?"),
        ("unknown-kye", "Did you mean 'unknown-key'?"),
        ("AML999", "`trainyard explain` lists all rules."),
        ("", "`trainyard explain` lists all rules."),
    ],
)
def test_an_unknown_rule_is_answered_with_a_suggestion(written: str, hint: str) -> None:
    with pytest.raises(UsageError, match="unknown rule") as unknown:
        find_rule(written, RULES)
    assert str(unknown.value).endswith(hint)


def test_all_rules_are_listed_a_line_each() -> None:
    lines = as_list({**RULES, **author_rules.RULES}.values()).splitlines()
    assert len(lines) == len(RULES) + len(author_rules.RULES)
    assert lines[0].split()[:3] == ["AML001", "error", "unreadable-file"]
    assert lines[len(RULES)].split()[:3] == ["TY101", "error", "unknown-profile"]


def test_the_terminal_gets_both_sides_of_the_example() -> None:
    text = as_text(find_rule("AML501", RULES))
    assert text.startswith("AML501 unknown-flag (error)\n")
    assert "    command: python train.py --num-epochs ${{inputs.epochs}}\n" in text
    assert "    command: python train.py --epochs ${{inputs.epochs}}\n" in text
    assert "  src/train.py\n    import argparse\n" in text
    assert "# trainyard: ignore[AML501] reason" in text


def test_a_rule_without_an_example_is_explained_all_the_same() -> None:
    assert "Wrong" not in as_page(find_rule("AML001", RULES))
    assert "ignore[" not in as_text(find_rule("AML902", RULES))


def test_every_rule_has_a_page_and_a_line_in_the_list(tmp_path: Path) -> None:
    subprocess.run([sys.executable, GENERATOR, tmp_path], check=True)
    assert {page.stem for page in tmp_path.glob("*.md")} == {"README", *RULES}
    assert (tmp_path / "AML501.md").read_text(encoding="utf-8") == as_page(RULES["AML501"])
    assert "[AML501](AML501.md)" in (tmp_path / "README.md").read_text(encoding="utf-8")
