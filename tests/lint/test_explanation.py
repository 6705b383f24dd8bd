"""A rule explained, on the terminal and as a page; the pages in docs/rules are those."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from trainyard.errors import UsageError
from trainyard.lint.explanation import as_page, as_text, find_rule

GENERATOR = Path(__file__).parents[2] / "docs" / "generate_rules.py"


def test_a_rule_is_found_by_its_id_and_by_its_name() -> None:
    assert find_rule("aml206") is find_rule("unknown-command-port")
    with pytest.raises(UsageError, match=r"no rule. Did you mean .aml"):
        find_rule("AML20")
    with pytest.raises(UsageError, match="docs/rules"):
        find_rule("nothing of the kind")


def test_the_terminal_gets_both_sides_of_the_example() -> None:
    text = as_text(find_rule("AML501"))
    assert text.startswith("AML501 unknown-flag (error)\n")
    assert "    command: python train.py --num-epochs ${{inputs.epochs}}\n" in text
    assert "    command: python train.py --epochs ${{inputs.epochs}}\n" in text
    assert "  src/train.py\n    import argparse\n" in text
    assert "# trainyard: ignore[AML501] reason" in text


def test_a_rule_without_an_example_is_explained_all_the_same() -> None:
    assert "Wrong" not in as_page(find_rule("AML001"))
    assert "ignore[" not in as_text(find_rule("AML902"))


def test_the_pages_are_as_the_rules_are() -> None:
    specification = importlib.util.spec_from_file_location("generate_rules", GENERATOR)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert module.drifted() == []
